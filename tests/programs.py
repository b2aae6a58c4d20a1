"""How tests compile what they reason about: quickly, not well, for most programs run once."""

from functools import partial

import jax

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""No optimisation by LLVM, and XLA's plain emitter of loops: a third of the time. For what any compiler must do."""

quick = partial(jax.jit, static_argnums=(0, 1), compiler_options=QUICK)

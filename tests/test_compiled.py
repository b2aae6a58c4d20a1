"""Reading compiled programs: the products of each operation, the loop that matters, and the layers of an attack."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import compiled

STEPS = 3


@pytest.fixture(scope="module")
def program():
    """A loop around a convolution and a product, with another product before it."""

    def run(x, kernel, weight):
        def step(x, _):
            y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return x + jnp.sin(y @ weight), None

        return jax.lax.scan(step, jnp.sin(x @ weight.T @ weight), length=STEPS)[0]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 6, 5, 8), (3, 1, 8, 16), (16, 8))]
    return compiled.read(jax.jit(run).lower(*shapes).compile().as_text())


def test_flops_are_two_for_each_product(program):
    pixels = 2 * 6 * 5
    loop = dict(compiled.reached(program, compiled.loop_body(program)))
    everything = {name: operation for part in program.values() for name, operation in part.items()}
    in_loop = sum(compiled.flops(program, operation) for operation in loop.values())
    assert in_loop == 2 * pixels * (3 * 8 * 16 + 16 * 8)
    assert sum(operation.flops for operation in everything.values()) - in_loop == 2 * pixels * 2 * 16 * 8
    assert not any(operation.calls for operation in loop.values())


def test_layers_of_an_attack_are_found_with_their_gradients(tiny):
    victim, params = tiny

    @jax.jit
    def value(params, belief, image):
        prediction = victim.predict(params, belief, jnp.zeros((1, 2)))
        _, internals = victim.update(params, prediction, victim.embed(params, image), None)
        return internals.value + internals.policy.mode().sum(), jnp.sum(internals.stoch)

    def gradient(params, belief, image):
        return jax.vjp(lambda image: value(params, belief, image)[0], image)[1](jnp.ones(1))

    lowered = jax.jit(gradient).lower(params, victim.initial(1), jnp.zeros((1, 16, 16, 3)))
    program = compiled.read(lowered.compile().as_text())
    sources = [operation.source for part in program.values() for operation in part.values() if operation.source]
    layers = {f"encoder {stage} {kind}" for stage in (0, 1) for kind in compiled.KINDS.values()} | {"posterior net"}
    assert layers <= {compiled.layer(source) for source in sources}
    assert layers <= {compiled.layer(source) for source in sources if "transpose(" in source}


def test_layer_is_named_after_its_scope():
    loop = "jit(step)/while/body/closed_call"
    assert compiled.layer(f"{loop}/transpose(jvp(actor))/MLP/linear0/dot_general") == "actor head"
    assert compiled.layer(f"{loop}/jvp(value)/MLP/out/add") == "value head"
    assert compiled.layer(f"{loop}/jvp(Encoder)/stage2/conv/pool/gt") == "encoder 2 pooling"
    assert compiled.layer(f"{loop}/jit(clip)/min") == compiled.REST

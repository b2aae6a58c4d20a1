"""A study: the axes of a grid, in which nothing unknown or impossible gets by."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

from wmjax.attacks.defenses import named
from wmjax.attacks.objectives import HAS_BOUNDARY, objective_targets, objective_weights
from wmjax.attacks.optimizers import OPTIMIZERS, optimizer
from wmjax.attacks.regions import region
from wmjax.attacks.threat import NOISES
from wmjax.attacks.timing import Timing, timing
from wmjax.core.call_syntax import parse_call
from wmjax.core.errors import InputError, unknown_name
from wmjax.envs import BACKENDS
from wmjax.envs import spec as env_spec
from wmjax.study.values import converted

FRAMES = ("float", "uint8")
"""What attacked frames are: any numbers in [0, 1], or grey levels, as a camera would give them."""

_MOST_COMPLAINTS = 3
_MOST_STEPS = 10_000
_MOST_EPISODE_STEPS = 500
_LEAST_BUDGET = 1e-9  # a thousandth of what changes any float32 image but a black one
WORDS = ("self", "victims")
"""What `sources` may list besides agents: the victim itself; all of the study's victims, each for every other."""

TRACES = ("none", "first", "all")
"""Which episodes are recorded frame by frame; first: those of the first seed, clean and at the largest budget."""

_MAY_BE_EMPTY = ("optimizers", "tasks")
_IMAGE_SIZE = 64


@dataclass(frozen=True)
class Study:
    """The axes; their product is the grid. Every episode's clean counterpart is part of it without being asked for.

    Fields are given as in a study file, or as any Python or NumPy values that mean the same; they become those of the
    types here. Raises InputError, naming the field, for others.
    """

    victims: tuple[str, ...]  #: names of shipped agents, or paths of weight files
    objectives: tuple[str, ...]  #: random, names of OBJECTIVES, critic, target(0.5), or mixtures: vsa+0.5*pea
    budgets: tuple[float, ...]  #: L-inf budgets eps in image units, in [0, 1]; "8/255" is 8 grey levels
    seeds: tuple[int, ...]  #: a list, or "20..39"
    optimizers: tuple[str, ...] = ("fgsm", "pgd")  #: names of OPTIMIZERS, with steps of their own or without: apgd(20)
    modes: tuple[str, ...] = ("full",)  #: when, see MODES: full, sparse(2), policy_top(50) ...
    regions: tuple[str, ...] = ("all",)  #: where in the image, see REGIONS: all, patch(16), red ...
    frames: tuple[str, ...] = ("float",)  #: attacked frames are float, or uint8: rounded to grey levels
    defenses: tuple[str, ...] = ("none",)  #: what the agent sees every frame through, see DEFENSES; here as jpeg(75)
    adaptive: tuple[bool, ...] = (False,)  #: whether the attacker knows the defense, where there is one
    tasks: tuple[str, ...] = ()  #: empty: each victim on the task that it was trained on
    sources: tuple[str, ...] = ("self",)  #: agents that attacks are computed on: names, paths, WORDS
    noise: str = "fresh"  #: what the attacker knows of the agent's latent sampling: fresh, shared, mode
    draws: int = 1  #: of latent noise, and of a random defense that it knows, that the attacker averages over
    steps: int = 10  #: steps of the optimizers that do not say their own; fgsm always takes one
    episode_steps: int = 500  #: agent steps an episode; 500 is a whole one
    backend: str = "host"  #: host: MuJoCo in C and its own pixels; device: both in JAX, one program with the attack
    traces: str = "first"  #: which episodes are recorded frame by frame, see TRACES
    name: str = "study"

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for a value that is not allowed."""
        complaints: list[str] = []
        for axis in fields(self):
            value, wrong = converted(axis.name, getattr(self, axis.name), axis.type)
            object.__setattr__(self, axis.name, value)
            complaints += wrong
        if complaints:
            more = [f"and {len(complaints) - _MOST_COMPLAINTS} more"] if len(complaints) > _MOST_COMPLAINTS else []
            raise InputError("; ".join([*complaints[:_MOST_COMPLAINTS], *more]))
        for axis in fields(self):
            if isinstance(values := getattr(self, axis.name), tuple) and not values and axis.name not in _MAY_BE_EMPTY:
                raise InputError(f"{axis.name} is empty; a study needs at least one")
        with _field("defenses"):
            object.__setattr__(self, "defenses", tuple(named(text)[2] for text in self.defenses))
        with _field("tasks"):
            object.__setattr__(self, "tasks", tuple(env_spec(task).task for task in self.tasks))
        for axis in fields(self):
            values = getattr(self, axis.name)
            if isinstance(values, tuple) and (twice := [value for value, n in Counter(values).items() if n > 1]):
                raise InputError(f"{axis.name} lists {twice[0]!r:.80} more than once")
        for field, agents in (("victims", self.victims), ("sources", self.sources)):
            for agent in agents:
                if not agent.isprintable():
                    raise InputError(f"{field}: {agent!r:.80} is no name or path: it has control characters")
        if words := set(WORDS) & set(self.victims):
            raise InputError(f"victims: {min(words)!r} is not an agent; as a word it belongs to sources")
        searched = [objective for objective in self.objectives if objective != "random"]
        with _field("objectives"):
            if "clean" in searched:
                raise InputError("clean is part of every study, and not to be listed")
            weights, targets = objective_weights(searched), objective_targets(searched)
            _check_apart(searched, [(*row, v) for row, v in zip(weights.tolist(), targets.tolist(), strict=True)])
        if searched and not self.optimizers:
            raise InputError(f"optimizers is empty; objectives other than random need one of {', '.join(OPTIMIZERS)}")
        attacks = self.attacks()
        if twice := [pair for pair, count in Counter(attacks).items() if count > 1]:
            raise InputError(f"optimizers lists {twice[0][0]} of {twice[0][1]} steps more than once")
        if "fab" in dict(attacks) and (others := [name for name in searched if name not in HAS_BOUNDARY]):
            known = ", ".join(sorted(HAS_BOUNDARY))
            raise InputError(f"optimizers: fab needs objectives with a boundary ({known}), and {others[0]} has none")
        for name, steps in (("steps", self.steps), *attacks):
            if not 1 <= steps <= _MOST_STEPS:
                where = name if name == "steps" else f"optimizers: steps of {name}"
                raise InputError(f"{where} is {steps}; allowed: 1 to {_MOST_STEPS}")
        if not 1 <= self.draws <= 64:
            raise InputError(f"draws is {self.draws}; allowed: 1 to 64")
        random = [text for text in self.defenses if named(text)[0].random]
        if self.draws > 1 and self.noise != "fresh" and not (random and True in self.adaptive):
            raise InputError(f"draws is {self.draws}, but with noise {self.noise} nothing is left to draw")
        for eps in self.budgets:
            if not (eps == 0 or _LEAST_BUDGET <= eps <= 1):
                raise InputError(
                    f"budgets: {eps} is neither 0 nor in [{_LEAST_BUDGET:g}, 1]; "
                    "budgets are in image units, 8/255 for 8 grey levels"
                )
        for seed in self.seeds:
            if not 0 <= seed < 2**32:
                raise InputError(f"seeds: {seed} is not in [0, 2^32)")
        for frames in self.frames:
            if frames not in FRAMES:
                raise unknown_name("frames", frames, FRAMES)
        if True in self.adaptive and self.defenses == ("none",):
            raise InputError("adaptive is true, but defenses lists none that an attacker could know")
        if self.noise not in NOISES:
            raise unknown_name("noise", self.noise, NOISES)
        if self.backend not in BACKENDS:
            raise unknown_name("backend", self.backend, BACKENDS)
        if self.traces not in TRACES:
            raise unknown_name("traces", self.traces, TRACES)
        if not 1 <= self.episode_steps <= _MOST_EPISODE_STEPS:
            raise InputError(f"episode_steps is {self.episode_steps}; allowed: 1 to {_MOST_EPISODE_STEPS}")
        with _field("modes"):
            for mode in self.modes:
                timing(mode, self.episode_steps)
            # Short episodes may make two modes agree that whole ones keep apart.
            _check_apart(self.modes, [_choices(timing(mode, _MOST_EPISODE_STEPS)) for mode in self.modes])
        with _field("regions"):
            _check_apart(self.regions, [region(name, _IMAGE_SIZE).tobytes() for name in self.regions])
        if not self.name.replace("-", "").replace("_", "").isalnum() or len(self.name) > 64:
            raise InputError(f"name is {self.name!r:.80}; allowed: letters, digits, - and _, at most 64")

    def attacks(self) -> list[tuple[str, int]]:
        """Return name and steps of every optimizer; raises InputError for one that is unknown or cannot take them."""
        pairs = []
        with _field("optimizers"):
            for text in self.optimizers:
                match parse_call(text):
                    case name, (int(steps),):
                        pairs.append((name, optimizer(name, steps).steps))
                    case "fgsm", ():
                        pairs.append(("fgsm", 1))
                    case name, ():
                        pairs.append((name, optimizer(name, self.steps).steps))
                    case _:
                        raise InputError(
                            f"{text!r:.80} is not a name, or a name with a whole number of steps: apgd(20)"
                        )
        return pairs


def _check_apart(names: Sequence[str], meanings: Sequence[Hashable]) -> None:
    """Raise InputError where two names mean the same."""
    first: dict[Hashable, str] = {}
    for name, meaning in zip(names, meanings, strict=True):
        if first.setdefault(meaning, name) != name:
            raise InputError(f"{first[meaning]!r:.80} and {name!r:.80} are the same")


def _choices(when: Timing) -> Hashable:
    return when.mask.tobytes(), when.gap, when.threshold, when.most


@contextmanager
def _field(name: str) -> Iterator[None]:
    """Put the field's name before what is wrong with its values."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None

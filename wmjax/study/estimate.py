"""What a study will take, before it is run: programs, operations, time, memory and disk.

Times are measured: all device workers play some frames of the study's own chunks at the same time, as in the run; first
to have the programs compiled and kept on disk, then to load them from there. What is left is arithmetic.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from wmjax.attacks.threat import Attack
from wmjax.attacks.timing import Timing
from wmjax.core.errors import Damaged
from wmjax.core.jax_settings import fixed_settings
from wmjax.envs import spec as env_spec
from wmjax.study.benchmark_run import Cost, Kind, Program, Tried, try_out
from wmjax.study.device_worker import attack_of
from wmjax.study.flops import step_flops
from wmjax.study.plan import Chunk
from wmjax.study.run_plan import Job
from wmjax.study.store import check_identity, finished

_MOST_TRIED = 8
"""Kinds of agent steps that are tried out; how long others take is told from those."""

_REPORT, _REPORT_EPISODE, _REPORT_FRAME = 3.0, 1e-3, 0.009
"""Seconds that a report takes, more for each episode, and more on a core for each frame of its videos; cores of 2024.
"""

_VIDEOS, _VIDEO_FRAMES = 6, 250
"""Most videos of a report, one an objective, and their frames."""

_WORKER_BYTES = 340 << 20
"""Of a process that steps environments on the host."""

_FRAME_BYTES = 2 * 64 * 64 * 3
"""Of a recorded frame in memory: as the camera and as the agent saw it."""


@dataclass(frozen=True)
class Estimate:
    """What a study will take. All but the first five are of what is left to do."""

    clean: int  #: episodes that are not attacked
    attacked: int
    probes: int  #: attacks of budget 0
    cells: int  #: of episodes that differ in their seed only
    done: int  #: episodes that are in the folder
    batch: int
    chunks: int
    programs: int  #: of different agents, attacks, batches, and on the device, physics
    steps: int  #: agent steps
    flops: float  #: of agents and attacks
    seconds: Mapping[str, float]  #: of wall time, by what they are for, once all programs are on disk
    compiling: float  #: seconds that programs took which were not on disk before the trial
    untried: int  #: kinds of agent steps whose times are told from others
    host_bytes: float  #: of memory, the most at a time
    device_bytes: float | None  #: of an accelerator's memory; None for CPUs, which use the host's
    disk_bytes: float

    @property
    def wall(self) -> float:
        """Seconds from the command to its end."""
        return sum(self.seconds.values())

    def lines(self) -> list[tuple[str, str]]:
        """Return all of it as pairs of a name and a text."""
        found = [
            ("cells", f"{self.cells}; episodes: {self.clean} clean, {self.attacked} attacked, probes: {self.probes}"),
            ("done", f"{self.done} episodes; the rest is of what is left"),
            ("to play", f"{self.chunks} chunks of up to {self.batch} episodes, {self.steps} agent steps"),
            ("programs", str(self.programs)),
            ("operations", f"{self.flops / 1e12:.3g} TFLOP in products of matrices"),
            ("wall time", f"{duration(self.wall)}, all programs being on disk"),
            *((f"  {name}", duration(seconds)) for name, seconds in self.seconds.items()),
            ("memory", f"{self.host_bytes / 1e9:.1f} GB at most"),
            ("disk", f"{self.disk_bytes / 1e6:.1f} MB"),
        ]
        if self.device_bytes is not None:
            found.append(("accelerator", f"{self.device_bytes / 1e9:.1f} GB at most"))
        if self.compiling > 1:
            found.append(("compiled", f"the programs, just now, in {duration(self.compiling)}"))
        if self.untried:
            found.append(("not tried", f"{self.untried} kinds of agent steps; their times are told from others"))
        return found


@fixed_settings()
def estimate(job: Job) -> Estimate:
    """Return what `run` will take to do what is left of the job, after a trial; nothing is written to its folder.

    Raises InputError where that holds another study.
    """
    check_identity(job.folder, job.identity)
    chunks = job.chunks[job.part]
    todo = [chunk for chunk in chunks if not _finished(job, chunk)]
    platform = job.devices[0].platform
    work: Counter[Kind] = Counter()
    for chunk in todo:
        work.update(steps(job, chunk))
    flops = {kind: kind_flops(kind, platform) for kind in work}
    tried = sorted(work, key=lambda kind: -work[kind] * (flops[kind] + 1))[:_MOST_TRIED]
    trial = try_out(job, [(kind, chunk) for kind, chunk in _examples(job).items() if kind in tried])
    costs = told(trial, flops)
    records = [sum(map(job.records, chunk.episodes)) for chunk in todo]
    recorded = sum(
        count * chunk.episode_steps * costs[next(iter(steps(job, chunk)))].frame_bytes
        for chunk, count in zip(todo, records, strict=True)
    )
    episodes = [episode for chunk in chunks for episode in chunk.episodes]
    probes = [episode for episode in episodes if not episode.eps and episode.objective != "clean"]
    clean = [episode for episode in episodes if episode.objective == "clean"]
    kept = 2 * max(records, default=0) * job.study.episode_steps * _FRAME_BYTES  # in pieces and in one piece
    return Estimate(
        clean=len(clean),
        attacked=len(episodes) - len(probes) - len(clean),
        probes=len(probes),
        cells=len({(e.program, e.objective, e.region, e.eps) for e in episodes}),
        done=len(episodes) - sum(len(chunk.episodes) for chunk in todo),
        batch=job.batch,
        chunks=len(todo),
        programs=len({kind.program for kind in work}),
        steps=sum(len(chunk.episodes) for chunk in todo) * job.study.episode_steps,
        flops=sum(count * flops[kind] for kind, count in work.items()),
        seconds={
            "start": trial.python,
            **queue(job, todo, trial, costs, records),
            "report": _report(job, len(episodes)),
        },
        compiling=trial.compiling,
        untried=len(work) - len(tried),
        host_bytes=trial.host_bytes + len(job.devices) * (kept + _WORKER_BYTES * (job.study.backend == "host")),
        device_bytes=trial.device_bytes,
        disk_bytes=len(todo) * trial.shard_bytes + recorded,
    )


def duration(seconds: float) -> str:
    """Return a time as people write it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{seconds / 60:.1f} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _report(job: Job, episodes: int) -> float:
    """Return the seconds that the report takes."""
    videos = 0 if job.study.traces == "none" else min(_VIDEOS, len(job.study.objectives))
    drawn = videos * min(_VIDEO_FRAMES, job.study.episode_steps)
    return _REPORT + _REPORT_EPISODE * episodes + _REPORT_FRAME * drawn / len(job.devices)


def _finished(job: Job, chunk: Chunk) -> bool:
    try:
        return finished(job.folder, chunk.id, len(chunk.episodes))
    except Damaged:  # it will be made again
        return False


def _examples(job: Job) -> dict[Kind, Chunk]:
    """Return a chunk for each kind of agent step, in the order in which a run comes to them."""
    found: dict[Kind, Chunk] = {}
    for chunk in job.chunks:
        kind = next(iter(steps(job, chunk)))
        if kind.attacked or chunk.episodes[0].objective == "clean":
            found.setdefault(kind, chunk)
    return found


def steps(job: Job, chunk: Chunk) -> dict[Kind, int]:
    """Return how many of the chunk's agent steps are of which kind: attacked first, and those without an attack.

    A rule that decides online is taken to attack what it may at most, examples independently of each other.
    """
    first = chunk.episodes[0]
    source = job.cards[first.source].victim if first.source in job.cards else None
    attack, when = attack_of(first, chunk.episode_steps, source)
    world = env_spec(first.task).domain
    kind = partial(Kind, world)
    program = partial(
        Program, job.cards[first.victim].victim, batch=chunk.batch, world=world if chunk.backend == "device" else ""
    )
    critic = any("critic" in episode.objective for episode in chunk.episodes)
    attacked = 0 if first.objective == "clean" else frames(when, len(chunk.episodes))
    spared = chunk.episode_steps - attacked
    counts = {
        kind(program(attack), attacked=True, critic=critic): attacked,
        kind(program(Attack(defense=attack.defense)), attacked=False, critic=False): spared,
    }
    return {kind: count for kind, count in counts.items() if count}


def frames(when: Timing, batch: int) -> int:
    """Return the agent steps at which at least one of `batch` episodes is attacked, at most or as is to be expected."""
    possible = int(when.mask.sum())
    share = min(1.0, when.most / max(possible, 1))
    return round(possible * (1 - (1 - share) ** batch))


@cache
def kind_flops(kind: Kind, platform: str) -> float:
    """Return the operations of one agent step of a batch."""
    program = kind.program
    return step_flops(
        program.victim, program.attack, program.batch, attacked=kind.attacked, platform=platform, critic=kind.critic
    )


def told(trial: Tried, flops: Mapping[Kind, float]) -> dict[Kind, Cost]:
    """Return the costs of each kind: as tried, or told from its nearest relative by `flops`.

    Programs that were not tried may not be on disk: they are as late as those of the trial were when they came first.
    """
    costs = {}
    for kind, count in flops.items():
        if kind in trial.costs:
            costs[kind] = trial.costs[kind]
            continue
        near = min(trial.costs, key=lambda other: (other.attacked != kind.attacked, abs(flops[other] - count)))
        step = trial.costs[near].step * count / flops[near]
        costs[kind] = trial.costs[near]._replace(load=trial.first[near], step=step)
    return costs


def queue(
    job: Job,
    chunks: Sequence[Chunk],
    trial: Tried,
    costs: Mapping[Kind, Cost],
    records: Sequence[int],
) -> dict[str, float]:
    """Return the seconds of wall time in which the device workers do the chunks, each the next one when it is free."""
    spent: Counter[str] = Counter()
    free = [(0.0, worker) for worker in range(len(job.devices))]
    tasks: dict[int, str] = {}
    loaded: set[tuple[int, Kind]] = set()
    for chunk, recorded in zip(chunks, records, strict=True):
        now, worker = heapq.heappop(free)
        task, parts = chunk.episodes[0].task, steps(job, chunk)
        new = [kind for kind in parts if (worker, kind) not in loaded]
        loaded.update((worker, kind) for kind in new)
        took = {
            "environments": trial.reset if tasks.get(worker) == task else trial.start,
            "loading programs": sum(costs[kind].load for kind in new),
            "playing": sum(count * costs[kind].step for kind, count in parts.items()),
            "recordings": recorded * chunk.episode_steps * costs[next(iter(parts))].frame,
        }
        tasks[worker] = task
        spent.update(took)
        heapq.heappush(free, (now + sum(took.values()), worker))
    end = max(now for now, _ in free)
    device_workers = len(job.devices)
    return {name: seconds / device_workers for name, seconds in spent.items()} | {
        "waiting for the last device worker": max(0.0, end - sum(spent.values()) / device_workers)
    }

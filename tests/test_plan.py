"""From axes to chunks: every episode once, whatever the axes, in chunks of one program and one shape."""

from collections import Counter
from dataclasses import astuple, fields, replace
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from wmjax.agents import zoo
from wmjax.attacks import OPTIMIZERS, named
from wmjax.core.errors import InputError
from wmjax.study import plan as planning
from wmjax.study.plan import Chunk, Episode, episodes, plan
from wmjax.study.schema import CELL
from wmjax.study.spec import Study

BALANCE = zoo.card("dmc_cartpole_balance_r2dreamer_1m")
SWINGUP = replace(BALANCE, task="dmc_cartpole_swingup")
CARDS = {"a": BALANCE, "b": SWINGUP, "c": BALANCE}
STUDY = Study(victims=("a",), objectives=("pda",), budgets=(0.1,), seeds=(20,))


def subsets(values, min_size=1, **kwargs):
    return st.lists(st.sampled_from(list(values)), min_size=min_size, unique=True, **kwargs).map(tuple)


def built(**axes):
    """A study; where an axis does not go with another, it falls back to its default."""
    if set(axes["defenses"]) == {"none"}:
        axes["adaptive"] = (False,)
    if axes["noise"] != "fresh" and not (True in axes["adaptive"] and "noise" in axes["defenses"]):
        axes["draws"] = 1
    if not {"a", "c"} & {*axes["victims"]}:  # the source "c" plays their task
        axes["sources"] = tuple(source for source in axes["sources"] if source != "c") or ("self",)
    if "fab" in axes["optimizers"]:
        axes["objectives"] = tuple(o for o in axes["objectives"] if o in ("boundary", "random")) or ("boundary",)
    return Study(**axes)


studies = st.builds(
    built,
    victims=subsets(CARDS),
    objectives=subsets(["pda", "vsa", "critic", "boundary", "target(-0.5)", "vsa+0.5*pea", "random"], max_size=3),
    budgets=subsets([0.0, 1 / 255, 8 / 255, 0.04, 1.0], max_size=3),
    seeds=subsets(range(12), max_size=4),
    optimizers=subsets([*OPTIMIZERS, "apgd(37)", "pgd(30)"], max_size=3),
    modes=subsets(["full", "first_half", "sparse(3)", "sparse(3,1)", "policy_top(4)", "value_gap(0.5)"], max_size=2),
    sources=subsets(["self", "victims", "c"]),
    regions=subsets(["all", "patch(5)", "border(2)", "red"], max_size=2),
    frames=subsets(["float", "uint8"]),
    defenses=subsets(["none", "jpeg", "jpeg(50)", "noise", "median"], max_size=3),
    adaptive=subsets([False, True]),
    noise=st.sampled_from(["fresh", "shared", "mode"]),
    draws=st.integers(1, 64),
    steps=st.integers(1, 20),
    episode_steps=st.integers(1, 500),
)
batches = st.integers(1, 7)


def agents(study: Study) -> tuple[dict, dict]:
    """The cards of the study's victims, and of its sources; "c" is an agent, the other words are the study's."""
    others = {"c"} & set(study.sources) | (set(study.victims) if "victims" in study.sources else set())
    return {name: CARDS[name] for name in study.victims}, {name: CARDS[name] for name in sorted(others)}


def planned(study: Study, batch: int) -> list[Chunk]:
    return plan(study, *agents(study), dict.fromkeys(CARDS, "0" * 64), batch)


def way(e: Episode) -> tuple:
    """What probes differ in."""
    return e.victim, e.task, e.optimizer, e.steps, e.noise, e.draws, e.source, e.frames, e.defense, e.adaptive


@settings(max_examples=150, deadline=None)
@given(studies, batches)
def test_every_episode_exactly_once(study, batch):
    """The grid told apart in another way: for each cell of the product of all axes, whether it is there."""
    counts = Counter(episode for chunk in planned(study, batch) for episode in chunk.episodes)
    assert set(counts.values()) == {1}
    own = {"apgd(37)": ("apgd", 37), "pgd(30)": ("pgd", 30), "fgsm": ("fgsm", 1)}
    cells, probes = set(), set()
    for victim, seed, text in product(study.victims, study.seeds, study.defenses):
        at, guard = (victim, CARDS[victim].task), named(text)[2]
        cells.add((*at, "clean", "none", 0, "none", 0, "none", "none", "none", "none", guard, False, 0.0, seed))
        through = {"self"} if {"self", "victims"} & {*study.sources} or victim in study.sources else set()
        through |= {name for name in agents(study)[1] if name != victim and CARDS[name].task == CARDS[victim].task}
        axes = product(study.objectives, study.optimizers, study.frames, study.regions, study.modes, study.adaptive)
        for (objective, optimizer, frames, region, mode, adaptive), source in product(axes, through | {"none"}):
            if (source == "none") != (objective == "random"):
                continue
            how = (*own.get(optimizer, (optimizer, study.steps)), study.noise, study.draws, source)
            if objective == "random":
                how = ("none", 0, "none", 0, "none")
            knows = adaptive and guard != "none" and objective != "random"
            place = (*how, frames, region, mode, guard, knows)
            cells |= {(*at, objective, *place, eps, seed) for eps in study.budgets if eps}
            probes.add((*at, *how, frames, guard, knows))
    assert {astuple(e) for e in counts if e.objective == "clean" or e.eps} == cells
    found = [e for e in counts if e.objective != "clean" and not e.eps]
    assert Counter(map(way, found)) == Counter(probes)
    first = next((objective for objective in study.objectives if objective != "random"), None)
    for e in found:
        assert e.objective == ("random" if e.optimizer == "none" else first)
        assert (e.region, e.mode, e.seed) == (study.regions[0], study.modes[0], study.seeds[0])


@settings(max_examples=100, deadline=None)
@given(studies, batches)
def test_chunks_share_program_and_shape(study, batch):
    chunks = planned(study, batch)
    for chunk in chunks:
        assert len({episode.program for episode in chunk.episodes}) == 1
        padded = chunk.padded()
        assert len(padded) == batch
        assert padded[: len(chunk.episodes)] == list(chunk.episodes)
        assert set(padded) == set(chunk.episodes)
    for program, count in Counter(chunk.episodes[0].program for chunk in chunks).items():
        members = sum(len(chunk.episodes) for chunk in chunks if chunk.episodes[0].program == program)
        assert count == -(-members // batch)  # as few as can be
    assert len({chunk.id for chunk in chunks}) == len(chunks)


@settings(max_examples=100, deadline=None)
@given(studies, batches, st.randoms(use_true_random=False))
def test_the_order_of_the_axes_does_not_matter(study, batch, random):
    shuffled = {
        field.name: tuple(random.sample(value, len(value)))
        for field in fields(Study)
        if isinstance(value := getattr(study, field.name), tuple)
    }
    found = [
        {e for chunk in planned(given, batch) for e in chunk.episodes if e.eps or e.objective == "clean"}
        for given in (study, replace(study, **shuffled))
    ]
    assert found[0] == found[1]  # only probes are of what comes first


def test_the_longest_chunks_come_first():
    steps = [chunk.episodes[0].steps for chunk in planned(replace(STUDY, objectives=("random", "pda")), 1)]
    assert steps == [10, 10, 1, 1, 0, 0, 0]  # each attack with its probe
    modes = ("sparse(4)", "policy_top(50)", "full", "first_half")
    chunks = planned(replace(STUDY, optimizers=("pgd", "pgd_restarts(4)"), modes=modes, draws=2), 8)
    work = {(chunk.episodes[0].steps, chunk.episodes[0].mode): chunk.work for chunk in chunks}
    assert work[10, "full"] == 500 + 500 * 10 * 2
    assert work[4, "first_half"] == 500 + 250 * 4 * 5 * 2  # five starts
    assert work[10, "sparse(4)"] == 500 + 125 * 10 * 2
    assert work[10, "policy_top(50)"] == 500 + 50 * 10 * 2
    assert [chunk.work for chunk in chunks] == sorted(work.values(), reverse=True)


def test_a_source_attacks_the_victims_of_its_task():
    study = Study(victims=("a", "b"), objectives=("pda",), budgets=(0.1,), seeds=(20,), sources=("self", "c"))
    found = {(e.victim, e.source) for e in episodes(study, *agents(study)) if e.objective != "clean"}
    assert found == {("a", "self"), ("a", "c"), ("b", "self")}  # b plays another task than c
    with pytest.raises(InputError, match="sources: c attacks no victim"):
        episodes(replace(study, victims=("b",)), {"b": SWINGUP}, {"c": BALANCE})
    small = replace(BALANCE, victim=replace(BALANCE.victim, depths=(4, 6)), task=None)  # 16 pixels wide
    with pytest.raises(InputError, match="sources: c attacks no victim"):
        episodes(study, {"a": BALANCE}, {"c": small})


def test_the_columns_that_name_a_row_are_an_episode():
    assert tuple(field.name for field in fields(Episode)) == CELL


def test_ids_stay_what_they_are():
    """An id names a shard: if it changed, no unfinished study of an earlier version could be resumed."""
    attack = ("vsa", "pgd", 10, "fresh", 1, "self", "float", "all", "full", "jpeg(75)", True)
    chunk = Chunk((Episode("a", "dmc_walker_walk", *attack, 8 / 255, 20),), 4, 500, "host", "0" * 64, "")
    assert chunk.id == "3166f6eb5a7d7757"


def test_other_work_has_another_id():
    chunk = planned(STUDY, 1)[0]
    others = dict(
        steps=11, eps=0.2, seed=21, mode="sparse(2)", noise="mode", draws=2, frames="uint8", region="red",
        defense="jpeg(75)", adaptive=True, source="b",
    )  # fmt: skip
    chunks = [
        chunk,
        replace(chunk, batch=2),
        replace(chunk, episode_steps=499),
        replace(chunk, backend="device"),
        replace(chunk, victim_sha256="1" * 64),
        replace(chunk, source_sha256="1" * 64),
        *(replace(chunk, episodes=(replace(chunk.episodes[0], **{name: value}),)) for name, value in others.items()),
    ]
    assert len({chunk.id for chunk in chunks}) == len(chunks) == 6 + len(others)


def test_a_victim_without_a_task_plays_all_that_fit():
    cards = {"a": replace(BALANCE, task=None), "b": SWINGUP}
    study = replace(STUDY, victims=("a", "b"), tasks=("dmc_cartpole_balance", "dmc_cartpole_swingup"))
    pairs = {(episode.victim, episode.task) for episode in episodes(study, cards)}
    assert pairs == {("a", "dmc_cartpole_balance"), ("a", "dmc_cartpole_swingup"), ("b", "dmc_cartpole_swingup")}
    with pytest.raises(InputError, match="a has action_size 1, but dmc_walker_walk has 6"):
        episodes(replace(study, tasks=(*study.tasks, "dmc_walker_walk")), cards)


def test_too_many_episodes_are_counted_before_they_are_made(monkeypatch):
    monkeypatch.setattr(planning, "_MOST_EPISODES", 5)
    assert len(episodes(STUDY, {"a": BALANCE})) == 5  # clean, two attacks, and their probes
    monkeypatch.setattr(planning, "_MOST_EPISODES", 4)
    with pytest.raises(InputError, match="the study has 5 episodes; at most 4"):
        episodes(STUDY, {"a": BALANCE})


@settings(max_examples=100, deadline=None)
@given(studies)
def test_they_are_counted_right(study):
    cards = agents(study)
    count = len(episodes(study, *cards))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MOST_EPISODES", count)
        assert len(episodes(study, *cards)) == count
        patch.setattr(planning, "_MOST_EPISODES", count - 1)
        with pytest.raises(InputError, match=f"the study has {count} episodes"):
            episodes(study, *cards)

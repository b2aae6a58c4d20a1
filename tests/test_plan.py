"""From axes to chunks: every episode once, whatever the axes, in chunks of one program and one shape."""

from collections import Counter
from dataclasses import fields, replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from wmjax.attacks import OBJECTIVES, OPTIMIZERS
from wmjax.core.errors import InputError
from wmjax.grid import plan as planning
from wmjax.grid.plan import Chunk, Episode, episodes, plan
from wmjax.grid.rows import CELL
from wmjax.grid.spec import Study
from wmjax.victims import zoo

BALANCE = zoo.card("dmc_cartpole_balance_r2dreamer_1m")
SWINGUP = replace(BALANCE, task="dmc_cartpole_swingup")
CARDS = {"a": BALANCE, "b": SWINGUP, "c": BALANCE}
STUDY = Study(victims=("a",), objectives=("pda",), budgets=(0.1,), seeds=(20,))


def subsets(values, min_size=1, **kwargs):
    return st.lists(st.sampled_from(list(values)), min_size=min_size, unique=True, **kwargs).map(tuple)


studies = st.builds(
    Study,
    victims=subsets(CARDS),
    objectives=subsets([*OBJECTIVES, "random"]),
    budgets=subsets([0.0, 1 / 255, 8 / 255, 0.04, 1.0]),
    seeds=subsets(range(12)),
    optimizers=subsets(OPTIMIZERS),
    modes=subsets(["full", "first_half", "second_half", "sparse(3)"]),
    noise=st.sampled_from(["fresh", "shared", "mode"]),
    steps=st.integers(1, 20),
    episode_steps=st.integers(1, 500),
)
batches = st.integers(1, 7)


def planned(study: Study, batch: int) -> list[Chunk]:
    return plan(study, {name: CARDS[name] for name in study.victims}, dict.fromkeys(CARDS, "0" * 64), batch)


@settings(max_examples=150, deadline=None)
@given(studies, batches)
def test_every_episode_exactly_once(study, batch):
    found = Counter(episode for chunk in planned(study, batch) for episode in chunk.episodes)
    assert set(found.values()) == {1}
    attacks = [(o, opt) for o in study.objectives if o != "random" for opt in study.optimizers]
    attacks += [("random", "none")] * ("random" in study.objectives)
    cells = {
        (victim, CARDS[victim].task, *attack, mode, eps, seed)
        for victim in study.victims
        for seed in study.seeds
        for attack, mode, eps in [
            (("clean", "none"), "none", 0.0),
            *((attack, mode, eps) for attack in attacks for mode in study.modes for eps in study.budgets if eps),
        ]
    }
    named = Counter((e.victim, e.task, e.objective, e.optimizer, e.mode, e.eps, e.seed) for e in found)
    assert named == Counter(cells)
    steps = {"none": 0, "fgsm": 1}
    assert all(e.steps == steps.get(e.optimizer, study.steps) for e in found)
    assert all(e.noise == (study.noise if e.steps else "none") for e in found)


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
    assert planned(replace(study, **shuffled), batch) == planned(study, batch)


def test_the_longest_chunks_come_first():
    steps = [chunk.episodes[0].steps for chunk in planned(replace(STUDY, objectives=("random", "pda")), 1)]
    assert steps == [10, 1, 0, 0]


def test_the_columns_that_name_a_row_are_an_episode():
    assert tuple(field.name for field in fields(Episode)) == CELL


def test_ids_stay_what_they_are():
    """An id names a shard: if it changed, no unfinished study of an earlier version could be resumed."""
    chunk = Chunk(
        (Episode("a", "dmc_walker_walk", "vsa", "pgd", 10, "fresh", "full", 8 / 255, 20),), 4, 500, "host", "0" * 64
    )
    assert chunk.id == "cc874a2a36a9a4e5"


def test_other_work_has_another_id():
    chunk = planned(STUDY, 1)[0]
    others = [
        replace(chunk, batch=2),
        replace(chunk, episode_steps=499),
        replace(chunk, backend="device"),
        replace(chunk, victim_sha256="1" * 64),
        *(
            replace(chunk, episodes=(replace(chunk.episodes[0], **{name: value}),))
            for name, value in [("steps", 11), ("eps", 0.2), ("seed", 21), ("mode", "sparse(2)"), ("noise", "mode")]
        ),
    ]
    assert len({chunk.id, *(other.id for other in others)}) == 1 + len(others)


def test_a_victim_without_a_task_plays_all_that_fit():
    cards = {"a": replace(BALANCE, task=None), "b": SWINGUP}
    study = replace(STUDY, victims=("a", "b"), tasks=("dmc_cartpole_balance", "dmc_cartpole_swingup"))
    pairs = {(episode.victim, episode.task) for episode in episodes(study, cards)}
    assert pairs == {("a", "dmc_cartpole_balance"), ("a", "dmc_cartpole_swingup"), ("b", "dmc_cartpole_swingup")}
    with pytest.raises(InputError, match="a has action_size 1, but dmc_walker_walk has 6"):
        episodes(replace(study, tasks=(*study.tasks, "dmc_walker_walk")), cards)


def test_too_many_episodes_are_counted_before_they_are_made(monkeypatch):
    monkeypatch.setattr(planning, "_MOST_EPISODES", 3)
    assert len(episodes(STUDY, {"a": BALANCE})) == 3
    monkeypatch.setattr(planning, "_MOST_EPISODES", 2)
    with pytest.raises(InputError, match="the study has 3 episodes; at most 2"):
        episodes(STUDY, {"a": BALANCE})

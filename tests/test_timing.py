"""When and where an attack may act: masks, online rules and regions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmjax.attacks import MODES, REGIONS, region, timing
from wmjax.attacks.timing import strike
from wmjax.core.call_syntax import parse_call
from wmjax.core.errors import InputError

T = 12


@pytest.mark.parametrize(
    ("mode", "attacked"),
    [
        ("full", range(12)),
        ("first_half", range(6)),
        ("second_half", range(6, 12)),
        ("sparse(4)", [0, 4, 8]),
        ("sparse(4,3)", [3, 7, 11]),
        ("sparse(1,0)", range(12)),
        ("frames(2,5)", [2, 3, 4, 5]),
        ("frames(11,11)", [11]),
    ],
)
def test_masks(mode, attacked):
    found = timing(mode, T)
    assert found.mask.dtype == bool
    assert np.flatnonzero(found.mask).tolist() == list(attacked)
    assert (found.gap, found.threshold, found.most >= T) == ("none", -np.inf, True)


@given(st.integers(1, 999))
def test_the_halves_cover_an_episode_once(steps):
    assert (timing("first_half", steps).mask ^ timing("second_half", steps).mask).all()


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("policy_gap(0.25)", ("policy", 0.25, None)),
        ("value_gap(3)", ("value", 3.0, None)),
        ("policy_top(5)", ("policy", -np.inf, 5)),
        ("value_top(1)", ("value", -np.inf, 1)),
    ],
)
def test_rules(mode, rule):
    found = timing(mode, T)
    assert found.mask.all()
    assert (found.gap, found.threshold) == rule[:2]
    assert found.most == rule[2] or (rule[2] is None and found.most >= T)


@pytest.mark.parametrize(
    "mode",
    ["", "third_half", "sparse", "sparse()", "sparse(0)", "sparse(2,2)", "sparse(2.5)", "sparse(2,1,0)", "full(1)",
     "frames(5,2)", "frames(0,12)", "frames(-1,3)", "policy_gap", "policy_gap(-1)", "policy_gap(nan)", "policy_top(0)",
     "policy_top(1.5)", "value_gap(1e9)", "sparse(2)\n", "sparse(２)", "sparse(02)", "sparse(" + "9" * 99 + ")"],
)  # fmt: skip
def test_unknown_modes_list_the_known_ones(mode):
    with pytest.raises(InputError) as error:
        timing(mode, T)
    assert all(known in str(error.value) for known in MODES)
    assert len(str(error.value)) < 500


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_itself(text):
    name, numbers = parse_call(text)
    assert numbers or name == text


def play(gaps, threshold=-np.inf, most=10**9):
    """Return which frames [B, T] a rule attacks in episodes with `gaps` [B, T]."""
    batch, steps = gaps.shape
    threshold, most = np.full(batch, threshold, np.float32), np.full(batch, most, np.int32)

    def step(state, t):
        seen, used = state
        struck = strike(gaps[:, t], seen, used, t, jnp.int32(steps), threshold, most)
        return (seen.at[:, t].set(gaps[:, t]), used + struck.astype(jnp.int32)), struck

    start = jnp.full((batch, steps + 7), 9.0), jnp.zeros(batch, jnp.int32)  # what is not yet seen does not count
    return np.asarray(jax.lax.scan(step, start, jnp.arange(steps))[1]).T


def test_a_threshold_attacks_exactly_the_frames_that_reach_it():
    gaps = np.random.default_rng(0).uniform(size=(5, 30)).astype(np.float32)
    np.testing.assert_array_equal(play(jnp.asarray(gaps), 0.5), gaps >= np.float32(0.5))
    assert play(jnp.asarray(gaps)).all()
    broken = jnp.asarray(np.where(gaps > 0.7, np.nan, gaps))
    np.testing.assert_array_equal(play(broken), gaps <= 0.7)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_budget_of_frames_is_used_up_and_never_exceeded(seed, most):
    gaps = np.random.default_rng(seed).normal(size=(3, 40)).astype(np.float32)
    assert (play(jnp.asarray(gaps), most=most).sum(axis=1) == most).all()
    assert (play(jnp.asarray(gaps), most=most, threshold=0.5).sum(axis=1) <= most).all()


def test_a_budget_goes_to_the_frames_with_large_gaps():
    gaps = np.random.default_rng(1).normal(size=(200, 100)).astype(np.float32)
    struck = play(jnp.asarray(gaps), most=20)
    best = np.sort(gaps, axis=1)[:, -20:].mean()
    assert gaps[struck].mean() > 0.7 * best  # chance: 0


def test_each_example_has_its_own_rule():
    gaps = jnp.asarray(np.tile(np.arange(10, dtype=np.float32), (3, 1)))
    limits = np.array([-np.inf, 5.0, 0.0], np.float32), np.array([99, 99, 2], np.int32)
    alone = [play(gaps[i : i + 1], limits[0][i], limits[1][i])[0] for i in range(3)]
    assert [int(struck.sum()) for struck in alone] == [10, 5, 2]


@pytest.mark.parametrize(
    ("name", "pixels", "where"),
    [
        ("all", 8 * 8 * 3, (0, 0, 0)),
        ("patch(2)", 2 * 2 * 3, (3, 4, 1)),
        ("patch(3)", 3 * 3 * 3, (2, 4, 1)),
        ("patch(8)", 8 * 8 * 3, (7, 7, 2)),
        ("border(1)", (64 - 36) * 3, (0, 5, 2)),
        ("border(4)", 8 * 8 * 3, (4, 4, 0)),
        ("red", 64, (3, 3, 0)),
        ("blue", 64, (3, 3, 2)),
    ],
)
def test_regions(name, pixels, where):
    inside = region(name, 8)
    assert inside.shape == (8, 8, 3)
    assert inside.dtype == np.float32
    assert set(np.unique(inside)) <= {0, 1}
    assert inside.sum() == pixels
    assert inside[where] == 1


@pytest.mark.parametrize("name", ["", "patch", "patch(0)", "patch(9)", "patch(1.5)", "border(5)", "alpha", "all(2)"])
def test_unknown_regions_list_the_known_ones(name):
    with pytest.raises(InputError) as error:
        region(name, 8)
    assert all(known in str(error.value) for known in REGIONS)

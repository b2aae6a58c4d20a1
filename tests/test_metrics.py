"""The metrics against hand-computed examples, properties and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from wmjax.core.errors import InputError
from wmjax.metrics import auc, interval, nauc, resampled_means, valid_mean

PAPER_BUDGETS = (0.0, 0.02, 0.04, 0.08, 0.12, 0.16)


def rng():
    return np.random.default_rng(7)


def curves(count=1):
    """(budgets [K], then `count` arrays of scores in [0, 1] of one shape [N, K])."""
    return st.integers(2, 6).flatmap(
        lambda k: st.tuples(
            st.lists(st.integers(0, 1000), min_size=k, max_size=k, unique=True).map(lambda e: np.sort(e) / 1000),
            *[hnp.arrays(np.float64, (3, k), elements=st.floats(0, 1)) for _ in range(count)],
        )
    )


def test_auc_by_hand():
    # (4 + 2) / 2 * 1 + (2 + 0) / 2 * 2
    assert auc([0.0, 1.0, 3.0], [4.0, 2.0, 0.0]) == 5.0
    np.testing.assert_allclose(nauc([0.0, 1.0, 3.0], [4.0, 2.0, 0.0], scale=10.0), 5 / 30)


def test_nauc_of_the_benchmarks_budgets_by_hand():
    # Areas 15 + 12 + 18 + 10 + 4 over a width of 0.16 and a scale of 1000.
    scores = [900.0, 600.0, 600.0, 300.0, 200.0, 0.0]
    np.testing.assert_allclose(nauc(PAPER_BUDGETS, scores, scale=1000.0), (15 + 12 + 18 + 10 + 4) / 160)


def test_budgets_need_not_begin_at_zero():
    np.testing.assert_allclose(nauc([0.5, 0.6], [[0.2, 0.4]]), [0.3])


def test_a_missing_score_makes_its_area_missing_and_no_other():
    areas = nauc([0.0, 0.1, 0.2], [[1.0, np.nan, 0.0], [1.0, 1.0, 1.0]])
    assert np.isnan(areas[0])
    assert areas[1] == 1.0


@pytest.mark.parametrize(
    ("budgets", "scores"),
    [
        ([0.1], [1.0]),
        ([0.2, 0.1], [1, 1]),
        ([0.1, 0.1], [1, 1]),
        ([0.0, np.nan], [1, 1]),
        ([0, 1], [1, 2, 3]),
        ([0, 1], 1),
    ],
)
def test_impossible_curves_are_refused(budgets, scores):
    with pytest.raises(InputError, match=r"budgets|scores"):
        auc(budgets, scores)


@given(curves())
def test_nauc_is_a_share(case):
    budgets, scores = case
    assert np.all((nauc(budgets, scores) >= 0) & (nauc(budgets, scores) <= 1 + 1e-12))


@given(curves(2))
def test_nauc_is_monotone(case):
    budgets, one, two = case
    assert np.all(nauc(budgets, np.maximum(one, two)) >= nauc(budgets, one) - 1e-12)


@given(curves(), st.floats(0.1, 10), st.floats(1, 1000))
def test_nauc_knows_no_units(case, stretch, scale):
    budgets, scores = case
    np.testing.assert_allclose(nauc(stretch * budgets, scale * scores, scale=scale), nauc(budgets, scores), atol=1e-9)


def test_valid_mean_leaves_nan_out_and_never_invents_zero():
    np.testing.assert_array_equal(valid_mean([[1.0, np.nan, 3.0], [np.nan] * 3], axis=1), [2.0, np.nan])
    assert np.isnan(valid_mean([]))


def test_interval_agrees_with_scipy_on_one_stratum():
    scores = rng().gamma(2.0, 100.0, size=20)
    ours = interval(resampled_means(scores[None], rng(), replicates=20_000))
    theirs = stats.bootstrap((scores,), np.mean, n_resamples=20_000, method="percentile", rng=rng()).confidence_interval
    width = theirs.high - theirs.low
    np.testing.assert_allclose([ours[0][0], ours[1][0]], [theirs.low, theirs.high], atol=0.03 * width)


def test_interval_of_a_ratio_of_two_cells_agrees_with_scipy_paired():
    scores = rng().uniform(1.0, 2.0, size=(12, 2)) + rng().uniform(0.0, 2.0, size=(12, 1))
    draws = resampled_means(scores[None], rng(), replicates=20_000)
    ours = interval(draws[:, 0, 0] / draws[:, 0, 1])
    theirs = stats.bootstrap(
        (scores[:, 0], scores[:, 1]), lambda a, b, axis: a.mean(axis) / b.mean(axis), paired=True, vectorized=True,
        n_resamples=20_000, method="percentile", rng=rng(),
    ).confidence_interval  # fmt: skip
    np.testing.assert_allclose(ours, theirs, atol=0.03 * (theirs.high - theirs.low))


def test_two_seeds_by_hand():
    draws = resampled_means(np.array([[0.0, 1.0]]), rng(), replicates=4000)[:, 0]
    values, counts = np.unique(draws, return_counts=True)
    np.testing.assert_array_equal(values, [0.0, 0.5, 1.0])
    np.testing.assert_allclose(counts / 4000, [0.25, 0.5, 0.25], atol=0.03)
    np.testing.assert_array_equal(interval(draws), [0.0, 1.0])


def test_draws_are_paired_over_cells():
    base = rng().uniform(size=(2, 8, 1, 1))
    scores = base + np.array([[0.0, 0.25], [0.5, -1.0]])
    draws = resampled_means(scores, rng())
    np.testing.assert_allclose(
        draws - draws[..., :1, :1], np.broadcast_to(scores[0, 0] - base[0, 0], draws.shape), atol=1e-12
    )


def test_tasks_are_strata_drawn_apart():
    draws = resampled_means(np.tile(rng().normal(size=10), (2, 1)), rng(), replicates=5000)
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.06
    # Each task keeps its weight: a level that differs by task adds no spread to the mean over tasks.
    apart = resampled_means(np.repeat([[0.0], [100.0]], 10, axis=1), rng())
    np.testing.assert_array_equal(apart.mean(axis=1), 50.0)


def test_equal_generators_give_equal_draws():
    scores = rng().normal(size=(3, 5, 2))
    np.testing.assert_array_equal(resampled_means(scores, rng()), resampled_means(scores, rng()))
    assert not np.array_equal(resampled_means(scores, rng()), resampled_means(scores, np.random.default_rng(8)))


def test_nan_episodes_are_left_out_of_the_draws():
    scores = np.array([[[1.0, 5.0], [3.0, np.nan], [2.0, 5.0]]])
    draws = resampled_means(scores, rng())
    known = draws[~np.isnan(draws[:, 0, 1]), 0, 1]
    np.testing.assert_array_equal(known, 5.0)
    # One draw of 27 takes the failed seed three times.
    assert 0.01 < 1 - known.size / len(draws) < 0.08
    assert not np.isnan(interval(draws)[0]).any()


def test_seeds_that_a_task_lacks_are_not_drawn_there():
    scores = np.full((2, 20), np.nan)
    scores[0] = np.arange(20)
    scores[1, :3] = 1.0, 2.0, 3.0
    draws = resampled_means(scores, rng())
    assert not np.isnan(draws).any()
    np.testing.assert_allclose(draws[:, 1].std(), np.sqrt(2 / 3 / 3), rtol=0.1)


@pytest.mark.parametrize("seeds", [0, 1, 4])
def test_one_episode_or_none_has_no_interval(seeds):
    scores = np.full((1, seeds, 2), np.nan)
    scores[0, :1, 0] = 0.5
    low, high = interval(resampled_means(scores, rng()))
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_wrong_shapes_and_confidences_are_refused():
    with pytest.raises(InputError, match="task and seed"):
        resampled_means([1.0, 2.0], rng())
    with pytest.raises(InputError, match="confidence"):
        interval([1.0, 2.0], confidence=95)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_must_be_positive_and_finite(scale):
    with pytest.raises(InputError, match="scale must be positive and finite"):
        nauc([0.0, 0.1], [1.0, 0.5], scale=scale)

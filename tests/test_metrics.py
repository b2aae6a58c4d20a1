"""The metrics against hand-computed examples, properties, scipy, and what papers printed beside their own cells."""

import numpy as np
import published_cells as cells
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from wmjax.core.errors import InputError
from wmjax.metrics import (
    auc,
    clean_performance,
    flip_rate,
    interval,
    iqm,
    nauc,
    normalised_drop,
    ranking,
    resampled_iqms,
    resampled_means,
    strongest_counts,
    transfer,
    transfer_drop,
    valid_mean,
)
from wmjax.metrics.bootstrap import drawn_seeds

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


def test_iqm_by_hand():
    # Of eight runs the two lowest and the two highest go.
    assert iqm(np.array([[0.0, 7.0, 3.0, 100.0], [1.0, 4.0, 2.0, 5.0]])) == pytest.approx((2 + 3 + 4 + 5) / 4)
    # Of three none goes: the cut is rounded down.
    assert iqm(np.array([[0.0, 1.0, 5.0]])) == pytest.approx(2.0)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_iqm_is_scipys_trimmed_mean(tasks, seeds, draw):
    scores = np.random.default_rng(draw).normal(size=(tasks, seeds, 3)).round(1)
    scores[:, 1:][np.random.default_rng(draw + 1).random(scores[:, 1:].shape) < 0.2] = np.nan
    for k, ours in enumerate(iqm(scores)):
        valid = scores[..., k][~np.isnan(scores[..., k])]
        assert ours == pytest.approx(stats.trim_mean(valid, 0.25))


def test_iqm_needs_a_score_of_every_task():
    scores = rng().uniform(size=(2, 5, 2))
    scores[1, :, 0] = np.nan
    assert np.isnan(iqm(scores)).tolist() == [True, False]
    low, _ = interval(resampled_iqms(scores, rng()))
    assert np.isnan(low).tolist() == [True, False]
    with pytest.raises(InputError, match="task and seed"):
        iqm([1.0, 2.0])


def test_resampled_iqms_are_those_of_the_drawn_samples():
    scores = rng().normal(size=(3, 6, 2)).round(1)
    scores[0, 2, 1] = scores[2, :3, 0] = np.nan
    counts = drawn_seeds(~np.isnan(scores), rng(), 200)
    ours = resampled_iqms(scores, rng(), replicates=200)
    for count, row in zip(counts.astype(int), ours, strict=True):
        samples = [np.repeat(scores[i], count[i], axis=0) for i in range(3)]
        for k in range(2):
            each = [sample[~np.isnan(sample[:, k]), k] for sample in samples]
            expected = stats.trim_mean(np.concatenate(each), 0.25) if all(one.size for one in each) else np.nan
            assert row[k] == pytest.approx(expected, nan_ok=True)


def test_interval_of_iqm_agrees_with_scipy_on_one_stratum():
    scores = rng().gamma(2.0, 100.0, size=20)
    ours = interval(resampled_iqms(scores[None], rng(), replicates=20_000))
    theirs = stats.bootstrap(
        (scores,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), n_resamples=20_000, method="percentile",
        rng=rng(),
    ).confidence_interval  # fmt: skip
    np.testing.assert_allclose(ours, [theirs.low, theirs.high], atol=0.03 * (theirs.high - theirs.low))


def test_iqms_and_means_share_their_draws():
    scores = np.array([[0.0, 1.0, 2.0]])  # three runs: nothing is cut
    np.testing.assert_allclose(resampled_means(scores, rng())[:, 0], resampled_iqms(scores, rng()))


@pytest.mark.parametrize("seeds", [0, 1])
def test_one_run_a_task_has_no_interval_of_its_iqm(seeds):
    assert np.isnan(resampled_iqms(np.ones((2, seeds, 3)), rng())).all()


def test_clean_performance_by_hand():
    returns = [[900.0, 700.0, np.nan], [100.0, 200.0, 300.0]]
    assert clean_performance(returns) == 500.0
    assert np.isnan(clean_performance([*returns, [np.nan] * 3]))


def test_normalised_drop_by_hand():
    np.testing.assert_allclose(normalised_drop([999.0, 0.0, -21.0], [499.0, -0.5, -43.0]), [0.5, 0.5, 1.0])
    assert np.isnan(normalised_drop(np.nan, 1.0))


def test_flip_rate_by_hand():
    changes = np.array([[0.0, 0.1, 0.11, 2.0], [np.nan, 0.2, np.nan, 0.05], [np.nan] * 4])
    np.testing.assert_array_equal(flip_rate(changes), [0.5, 0.5, np.nan])
    assert flip_rate(changes[0], kappa=0.0) == 0.75


def test_transfer_by_hand():
    drops = np.array([[[9.0, 9.0], [0.2, 0.4], [0.6, 0.8]], [[0.1, 0.3], [9.0, 9.0], [0.5, 0.7]]])  # 2 to 3 agents
    found = transfer(drops, [[False, True, True], [True, False, True]])
    np.testing.assert_allclose(found.matrix, [[np.nan, 0.3, 0.7], [0.2, np.nan, 0.6]])
    np.testing.assert_allclose(found.by_objective, [1.4 / 4, 2.2 / 4])
    np.testing.assert_allclose(found.by_target, [[0.1, 0.2, 0.55], [0.3, 0.4, 0.75]])
    assert transfer_drop([0.0, 1.0, 3.0], [1.0, 0.5, 0.5]) == pytest.approx(1 - 1.75 / 3)


def test_a_missing_transfer_is_missing_in_its_means_and_no_other():
    drops = np.full((2, 2, 2), 0.5)
    drops[0, 1, 0] = np.nan
    found = transfer(drops, ~np.eye(2, dtype=bool))
    assert np.isnan(found.matrix[0, 1])
    assert found.matrix[1, 0] == 0.5
    np.testing.assert_array_equal(found.by_objective, [np.nan, 0.5])
    np.testing.assert_array_equal(found.by_target, [[0.5, np.nan], [0.5, 0.5]])
    assert np.isnan(transfer(drops, np.zeros((2, 2), bool)).by_objective).all()
    with pytest.raises(InputError, match="source and target"):
        transfer(drops, np.eye(3, dtype=bool))


def test_strongest_counts_by_hand():
    pairs = [[0.3, 0.2, 0.5], [0.1, 0.4, 0.1], [0.0, 0.0, 0.0], [0.6, np.nan, 0.1]]
    np.testing.assert_allclose(strongest_counts(pairs), [1 / 2 + 1 / 3, 1 + 1 / 3, 1 / 2 + 1 / 3])
    np.testing.assert_array_equal(strongest_counts([pairs, pairs])[1], strongest_counts(pairs))


@given(hnp.arrays(np.float64, (4, 7, 3), elements=st.sampled_from([0.0, 0.25, 0.5, np.nan])))
def test_strongest_counts_sum_to_the_decided_pairs(robustness):
    decided = ~np.isnan(robustness).any(axis=-1)
    np.testing.assert_allclose(strongest_counts(robustness).sum(axis=-1), decided.sum(axis=-1))


def test_ranking_by_hand():
    dimensions = np.array([[0.6, 10.0, 0.5, -1.0], [0.2, 20.0, 0.5, 3.0], [0.4, 20.0, 0.0, 1.0]])
    found = ranking(dimensions)
    mapped = [[0.6, 0.2, 0.6, 0.2], [0.2, 0.6, 0.6, 0.6], [0.4, 0.6, 0.2, 0.4]]
    np.testing.assert_allclose(found.mapped, mapped)
    np.testing.assert_allclose(found.score, np.array(mapped) @ [0.55, 0.15, 0.15, 0.15])


@pytest.mark.parametrize("lost", ["equal", "missing"])
def test_a_dimension_that_all_share_or_one_lacks_does_not_count(lost):
    dimensions = np.array([[0.6, 0.1, 0.5], [0.2, 0.3, 0.2]])
    dimensions[:, 1] = [0.3, 0.3] if lost == "equal" else [np.nan, 0.3]
    found = ranking(dimensions, [0.5, 0.3, 0.2])
    assert np.isnan(found.mapped[:, 1]).all()
    np.testing.assert_allclose(found.score, ranking(dimensions[:, [0, 2]], [0.5, 0.2]).score)
    np.testing.assert_allclose(found.score, [0.6, 0.2])


def test_there_is_no_ranking_without_the_scale():
    one, equal, missing = np.ones((1, 4)), np.array([[0.3, 0.1], [0.3, 0.2]]), np.array([[np.nan, 0.1], [0.3, 0.2]])
    for dimensions in (one, equal, missing):
        found = ranking(dimensions, np.ones(dimensions.shape[1]))
        assert np.isnan(found.score).all()
        assert np.isnan(found.mapped).all()
    with pytest.raises(InputError, match="weights"):
        ranking(equal, [0.5, 0.0])
    with pytest.raises(InputError, match="weights"):
        ranking(equal)


@given(hnp.arrays(np.float64, (3, 4), elements=st.integers(0, 9).map(float)), st.floats(0.5, 4), st.floats(-2, 2))
def test_ranking_knows_no_units_but_those_of_the_first(dimensions, stretch, shift):
    other = np.column_stack([dimensions[:, :1], stretch * dimensions[:, 1:] + shift])
    np.testing.assert_allclose(ranking(other).score, ranking(dimensions).score, atol=1e-9)
    np.testing.assert_array_equal(ranking(np.stack([dimensions, other])).score[0], ranking(dimensions).score)


# What papers printed, recomputed from their own cells. A cell of three digits is off by up to 0.0005, so is a mean of
# such cells; and the printed mean was rounded once more.
PRINTED = {"atol": 0.001 + 1e-9, "rtol": 0.0}


@pytest.mark.parametrize("name", [*cells.MAIN, *cells.TEMPORAL])
def test_the_papers_averages_over_objectives_count_random_noise(name):
    table = (cells.MAIN | cells.TEMPORAL)[name]
    np.testing.assert_allclose(table[:, :6].mean(axis=1), table[:, 6], **PRINTED)
    # Without noise they are another number: what "Avg." means is not left open.
    assert np.abs(table[:, 1:6].mean(axis=1) - table[:, 6]).min() > 0.001


def test_two_printed_averages_are_not_what_their_printed_cells_round_to():
    # Ties apart (0.4315 printed as 0.431), these need the digits that were not printed.
    off = {
        (name, cells.FAMILIES[i])
        for name, table in (cells.MAIN | cells.TEMPORAL).items()
        for i, row in enumerate(table)
        if abs(row[:6].mean() - row[6]) > 0.0005 + 1e-9
    }
    assert off == {("second_half", "R2-Dreamer"), ("sparse(4)", "Dreamer")}


def test_the_papers_strongest_shares():
    counts = np.array([count for count, _ in cells.COUNTS.values()])
    assert counts.sum() == 80
    np.testing.assert_allclose(100 * counts / 80, [share for _, share in cells.COUNTS.values()])
    # Over its means by family, as over pairs, value suppression and policy entropy win almost always.
    pairs = np.concatenate(list(cells.MAIN.values()))[:, 1:6]
    assert strongest_counts(pairs).tolist() == [0, 3, 0, 5, 0]


def test_the_papers_temporal_findings():
    average = {mode: table[:, 6] for mode, table in cells.TEMPORAL.items()}
    for stronger, weaker in (("full", "first_half"), ("first_half", "second_half"), ("full", "sparse(2)"),
                             ("sparse(2)", "sparse(4)"), ("sparse(4)", "sparse(6)")):  # fmt: skip
        assert np.all(average[stronger] < average[weaker])


def test_the_papers_ranking_from_the_dimensions_it_printed():
    # Recovery by model is a figure without numbers; the text says only that R2-Dreamer's is above Dreamer's.
    full = (cells.MAIN["MetaWorld"][:, 6] + cells.MAIN["DMC"][:, 6]) / 2
    known = np.stack([full, cells.TEMPORAL["first_half"][:, 6], cells.TEMPORAL["sparse(2)"][:, 6]], axis=-1)
    three = ranking(known, (0.55, 0.15, 0.15))
    assert [cells.FAMILIES[i] for i in np.argsort(-three.score)] == [
        "R2-Dreamer",
        "Dreamer",
        "Dreamer-InfoNCE",
        "Dreamer-Pro",
    ]
    assert np.argmax(three.mapped[:, 2]) == 0  # "Dreamer's slightly stronger sparse-frame nAUC"
    four = ranking(np.column_stack([known, [0.3, 0.4, 0.2, -0.1]]))
    assert [cells.FAMILIES[i] for i in np.argsort(-four.score)[:2]] == ["R2-Dreamer", "Dreamer"]


def test_the_papers_saliency_means_agree_by_model_and_by_objective():
    clean, attacked = cells.SALIENCY[:, 0::3], cells.SALIENCY[:, 1::3]
    np.testing.assert_allclose(attacked - clean, cells.SALIENCY[:, 2::3], atol=1.5e-4 + 1e-9, rtol=0)
    by_objective = cells.SALIENCY_BY_OBJECTIVE
    np.testing.assert_allclose(attacked.mean(axis=0), by_objective[:, 0::2].mean(axis=0), atol=1e-4, rtol=0)
    np.testing.assert_allclose(by_objective[:, 0::2] - clean.mean(axis=0), by_objective[:, 1::2], atol=1.5e-4, rtol=0)


@pytest.mark.parametrize("suite", cells.DROPS)
def test_the_search_papers_means_over_tasks(suite):
    means = [clean_performance(drops[:, None]) for drops in cells.DROPS[suite]]
    np.testing.assert_allclose(means, cells.MEAN_DROPS[suite], **PRINTED)
    np.testing.assert_allclose(valid_mean(cells.FLIPS[suite]), cells.MEAN_FLIP[suite], **PRINTED)
    # "the highest reward drop on 24 out of 26 Atari tasks and 18 out of 20 DMC tasks"
    wins = np.sum(cells.DROPS[suite][2] > cells.DROPS[suite][:2].max(axis=0))
    assert wins == {"Atari": 24, "DMC": 18}[suite]


def test_the_search_papers_ablation():
    means = cells.ABLATION.reshape(4, 2, 6).mean(axis=0)
    np.testing.assert_allclose(means, cells.MEAN_ABLATION, **PRINTED)
    assert tuple(cells.WINS.sum(axis=0)) == cells.ALL_WINS
    # "surpassing Random and Claudini by 131.8 % and 108.0 %"
    feedback, random, full = cells.MEAN_DROPS["Atari"]
    np.testing.assert_allclose(100 * (full / np.array([random, feedback]) - 1), [131.8, 108.0], atol=0.06)

"""Recovery, adaptive gap and the paired t test, against numbers by hand and SciPy."""

import numpy as np
import pytest
from scipy import stats

from wmjax.metrics import adaptive_gap, paired_p, recovery
from wmjax.metrics.paired import t_tail
from wmjax.metrics.recovery import FLOOR


@pytest.mark.parametrize(
    ("clean", "attacked", "defended", "expected"),
    [
        (0.9, 0.3, 0.3, 0.0), (0.9, 0.3, 0.9, 1.0), (0.9, 0.3, 0.6, 0.5), (0.9, 0.3, 0.0, -0.5), (0.9, 0.3, 1.2, 1.5),
        (0.3, 0.9, 0.6, 0.5),  # an attack that helped, and a defense that takes half of that away
    ],
)  # fmt: skip
def test_recovery_by_hand(clean, attacked, defended, expected):
    assert recovery(clean, attacked, defended) == pytest.approx(expected)


def test_recovery_is_undefined_without_harm():
    assert np.isnan(recovery(0.9, 0.9, 0.5))
    assert np.isnan(recovery(0.9, 0.9 - 0.9 * FLOOR, 0.5))
    assert not np.isnan(recovery(0.9, 0.9 - 1.1 * FLOOR, 0.5))
    assert np.isnan(recovery(0.9, 0.9, 0.5, floor=0.0))
    for lost in range(3):
        scores = [0.9, 0.3, 0.5]
        scores[lost] = np.nan
        assert np.isnan(recovery(*scores))


def test_recovery_broadcasts():
    clean, attacked = np.array([[1.0], [0.8]]), np.array([[0.5, 0.99], [0.4, 0.0]])
    np.testing.assert_allclose(recovery(clean, attacked, 0.5), [[0.0, np.nan], [0.25, 0.625]])


def test_the_gap_is_a_difference_of_means_over_what_both_know():
    assert adaptive_gap([0.8, 0.4], [0.2, 0.0]) == pytest.approx(0.5)
    assert adaptive_gap([0.8, 0.4, 0.9], [0.2, 0.0, np.nan]) == pytest.approx(0.5)
    assert np.isnan(adaptive_gap([np.nan, 0.1], [0.2, np.nan]))
    np.testing.assert_allclose(adaptive_gap([[0.8, 0.4], [0.1, 0.1]], [[0.2, 0.0], [0.2, 0.2]]), [0.5, -0.1])


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 19, 100, 1001])
def test_tail_of_t_agrees_with_scipy(freedom):
    for t in (-7.0, -0.5, 0.0, 0.7, 2.0, 5.0, 12.0):
        assert t_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), abs=1e-13)


def test_paired_p_agrees_with_scipy():
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 20):
        values = rng.normal(0.5, 1.0, n)
        expected = stats.ttest_1samp(values, 0.0, alternative="greater").pvalue
        assert paired_p(values) == pytest.approx(expected, abs=1e-12)


def test_equal_differences_are_certain_only_where_nothing_varies():
    assert paired_p([0.3, 0.3, 0.3]) == 0.0
    assert paired_p([0.0, 0.0, 0.0]) == paired_p([-0.1, -0.1]) == 1.0
    assert paired_p([0.3, 0.3, 0.3], least_sd=0.3) == pytest.approx(stats.t.sf(np.sqrt(3), 2))

"""What the benchmark measures: numpy arrays in, arrays out. Knows neither rows nor JAX."""

from wmjax.metrics.auc import auc, nauc
from wmjax.metrics.bootstrap import interval, resampled_means, valid_mean
from wmjax.metrics.iqm import iqm, resampled_iqms
from wmjax.metrics.paired import paired_p
from wmjax.metrics.performance import clean_performance, flip_rate, normalised_drop
from wmjax.metrics.ranking import ranking
from wmjax.metrics.recovery import adaptive_gap, recovery
from wmjax.metrics.strongest import strongest_counts
from wmjax.metrics.transfer import transfer, transfer_drop

__all__ = [
    "adaptive_gap",
    "auc",
    "clean_performance",
    "flip_rate",
    "interval",
    "iqm",
    "nauc",
    "normalised_drop",
    "paired_p",
    "ranking",
    "recovery",
    "resampled_iqms",
    "resampled_means",
    "strongest_counts",
    "transfer",
    "transfer_drop",
    "valid_mean",
]

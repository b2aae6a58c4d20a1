"""What the benchmark measures: numpy arrays in, arrays out. Knows neither rows nor JAX."""

from wmjax.metrics.auc import auc, nauc
from wmjax.metrics.bootstrap import interval, resampled_means, valid_mean
from wmjax.metrics.paired import paired_p
from wmjax.metrics.recovery import adaptive_gap, recovery

__all__ = ["adaptive_gap", "auc", "interval", "nauc", "paired_p", "recovery", "resampled_means", "valid_mean"]

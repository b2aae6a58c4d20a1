"""What the benchmark measures: numpy arrays in, arrays out. Knows neither rows nor JAX."""

from wmjax.metrics.auc import auc, nauc
from wmjax.metrics.bootstrap import interval, resampled_means, valid_mean

__all__ = ["auc", "interval", "nauc", "resampled_means", "valid_mean"]

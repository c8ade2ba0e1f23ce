"""Values grouped by the item that they repeat."""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
NORMAL = NormalDist()


class Interval(NamedTuple):
    """An estimate and its bounds; the bounds are NaN where the data cannot give any."""

    value: float
    low: float
    high: float


def as_values(values: ArrayLike) -> Floats:
    """[N] float64. ValueError where there is none, or one is not finite."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("values: at least one, all finite")
    return array


def cluster_sums(values: Floats, clusters: ArrayLike | None) -> tuple[Floats, Floats]:
    """Sum and size of each cluster, both [C]. ValueError where the lengths differ."""
    if clusters is None:
        return values, np.ones_like(values)
    names, index = np.unique(np.asarray(clusters).ravel(), return_inverse=True)
    if index.size != values.size:
        raise ValueError(f"clusters: {index.size} names for {values.size} values")
    sums = np.bincount(index, values, len(names)).astype(np.float64)
    return sums, np.bincount(index, minlength=len(names)).astype(np.float64)


def extended(sums: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """With one more item won and one more lost, as long and as far apart as those that differ are on average."""
    shifts = (sums / sizes)[sums != 0]
    shift = float(np.sqrt((shifts**2).mean())) if len(shifts) else 1.0
    repeats = sizes.mean()
    return np.append(sums, [repeats * shift, -repeats * shift]), np.append(sizes, [repeats, repeats])


def standard_error(values: ArrayLike, clusters: ArrayLike | None = None) -> float:
    """Standard error of the mean, repeats of one item counted as dependent (CR1: C / (C - 1) corrected).

    sqrt(C / (C - 1) * sum_c (sum of residuals in c)^2) / N; s / sqrt(N) where every cluster is one value.
    NaN for a single cluster.
    """
    return ratio_error(*cluster_sums(as_values(values), clusters))


def ratio_error(sums: Floats, sizes: Floats) -> float:
    """``standard_error`` from the sums and sizes of clusters."""
    count = len(sums)
    if count < 2:
        return float("nan")
    residuals = sums - sizes * sums.sum() / sizes.sum()
    return float(np.sqrt(count / (count - 1) * (residuals**2).sum()) / sizes.sum())


def z(level: float) -> float:
    """Two-sided normal quantile: 1.96 at 0.95."""
    return NORMAL.inv_cdf(0.5 + level / 2)

"""Bootstrap intervals over items (Efron and Tibshirani 1993, chapter 14: BCa)."""

import numpy as np
from numpy.typing import ArrayLike

from sawbench.stats.clusters import NORMAL, Floats, Interval, as_values, cluster_sums, extended

RESAMPLES = 4000
BLOCK = 2_000_000  # draws held at once


def mean_interval(values: ArrayLike, clusters: ArrayLike | None = None, seed: int = 0, level: float = 0.95) -> Interval:
    """Mean with its BCa bootstrap interval: whole clusters are drawn, bias and skew are corrected.

    BCa because means of KL over prompts are skewed, and a percentile interval of 16 of them sits too low. The bounds
    are NaN for a single cluster. For scores in [0, 1] use ``proportion_interval``: a bootstrap of equal values is a
    point.
    """
    sums, sizes = cluster_sums(as_values(values), clusters)
    mean = float(sums.sum() / sizes.sum())
    if len(sums) < 2:
        return Interval(mean, float("nan"), float("nan"))
    resampled_sums, resampled_sizes = resample(np.stack([sums, sizes]), seed)
    means = np.sort(resampled_sums / resampled_sizes)
    jackknife = (sums.sum() - sums) / (sizes.sum() - sizes)
    low, high = np.quantile(means, _bca(means, mean, jackknife, level))
    return Interval(mean, float(low), float(high))


def recovered(
    method: ArrayLike,
    worst: ArrayLike,
    best: ArrayLike,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Share of what was lost that a method gives back: (method - worst) / (best - worst), percentile interval.

    The three hold scores [N] of the same items in the same order (worst: naive INT4, best: BF16). Two imagined items
    that lose nothing, one gained and one given away, are drawn with the others, as in ``paired_interval``: the interval
    is not empty where the method equals the worst or the best on every item. The bounds are NaN where the resamples
    do not agree on the sign of the loss: nothing was surely lost, so nothing can be recovered.
    """
    low, mid, high = as_values(worst), as_values(method), as_values(best)
    gained, sizes = cluster_sums(mid - low, clusters)
    lost, _ = cluster_sums(high - low, clusters)
    ratio = float(gained.sum() / lost.sum()) if lost.sum() else float("nan")
    gains, losses = resample(np.stack([extended(gained, sizes)[0], np.append(lost, [0.0, 0.0])]), seed)
    if len(lost) < 2 or (losses <= 0).mean() > (1 - level) / 2:
        return Interval(ratio, float("nan"), float("nan"))
    positive = losses > 0
    bounds = np.quantile(gains[positive] / losses[positive], [(1 - level) / 2, (1 + level) / 2])
    return Interval(ratio, min(ratio, float(bounds[0])), max(ratio, float(bounds[1])))


def resample(columns: Floats, seed: int) -> Floats:
    """Sums [K, RESAMPLES] of ``columns`` [K, C] over C clusters drawn with replacement, the same ones for every K."""
    rng, clusters = np.random.default_rng(seed), columns.shape[1]
    step = max(1, BLOCK // clusters)
    blocks = [columns @ _draws(rng, min(step, RESAMPLES - start), clusters).T for start in range(0, RESAMPLES, step)]
    return np.concatenate(blocks, axis=1)


def _draws(rng: np.random.Generator, rows: int, clusters: int) -> Floats:
    """How often each cluster was drawn, [rows, clusters]."""
    drawn = rng.integers(0, clusters, (rows, clusters)) + clusters * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * clusters).reshape(rows, clusters).astype(np.float64)


def _bca(means: Floats, mean: float, jackknife: Floats, level: float) -> list[float]:
    """The two quantiles of the sorted resampled means that BCa reads."""
    below = (np.searchsorted(means, mean, "left") + np.searchsorted(means, mean, "right")) / (2 * len(means))
    bias = NORMAL.inv_cdf(float(np.clip(below, 1 / len(means), 1 - 1 / len(means))))
    centred = jackknife.mean() - jackknife
    spread = float((centred**2).sum())
    skew = float((centred**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    edges = [bias + NORMAL.inv_cdf(tail) for tail in ((1 - level) / 2, (1 + level) / 2)]
    return [NORMAL.cdf(bias + edge / (1 - skew * edge)) for edge in edges]

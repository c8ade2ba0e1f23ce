"""Shares of right answers: intervals that are not empty at 0 and 100 %, and pass@k."""

from math import comb, sqrt

from numpy.typing import ArrayLike

from sawbench.stats.clusters import Interval, as_values, cluster_sums, standard_error, z


def wilson(share: float, n: float, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share of ``n`` independent trials (``n`` may be an effective, fractional number).

    It holds the share: rounding would put its ends a hair off 0 and 1.
    """
    quantile = z(level)
    weight = quantile**2 / n
    centre = (share + weight / 2) / (1 + weight)
    half = quantile * sqrt(share * (1 - share) / n + weight / (4 * n)) / (1 + weight)
    return Interval(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def proportion_interval(values: ArrayLike, clusters: ArrayLike | None = None, level: float = 0.95) -> Interval:
    """Mean of scores in [0, 1] with Wilson's interval; repeats of one item count for what they add.

    The number of trials is the one whose binomial variance equals the clustered variance seen, never more than N;
    where every score is equal it is the number of items: repeats that all agree tell no more than one.
    """
    scores = as_values(values)
    if scores.min() < 0 or scores.max() > 1:
        raise ValueError("values: scores lie in [0, 1]")
    share = float(scores.mean())
    items = len(cluster_sums(scores, clusters)[0])
    error = standard_error(scores, clusters)
    if not error > 0:  # NaN for one item
        return wilson(share, items, level)
    return wilson(share, min(share * (1 - share) / error**2, scores.size), level)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased chance that k of n samples hold a right one (Chen et al. 2021): 1 - C(n - c, k) / C(n, k)."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} samples, {correct} right: needs k <= n and 0 <= correct <= n")
    return 1 - comb(n - correct, k) / comb(n, k)

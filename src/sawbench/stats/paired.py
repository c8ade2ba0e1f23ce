"""Two methods on the same items: difference, test, what the design could have seen, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sawbench.stats.clusters import NORMAL, Floats, Interval, as_values, cluster_sums, extended, ratio_error, z

Verdict = Literal["better", "worse", "cannot tell"]
EXACT_CLUSTERS = 12  # 4,096 sign patterns
FLIPS = 20_000


class Pair(NamedTuple):
    """Scores [N] of a method and of the baseline on the same (item, repeat) pairs, and the items."""

    method: ArrayLike
    baseline: ArrayLike
    clusters: ArrayLike | None = None


@dataclass(frozen=True)
class Comparison:
    """One method against the baseline; ``p`` is Holm's over the table, ``detectable`` what is found in it with 80 %."""

    difference: Interval
    p: float
    detectable: float
    items: int
    verdict: Verdict


def paired_interval(
    method: ArrayLike, baseline: ArrayLike, clusters: ArrayLike | None = None, level: float = 0.95
) -> Interval:
    """Mean of method - baseline for scores in [0, 1] on the same items, with the interval of Bonett and Price (2012).

    Two imagined items, one won and one lost, are added before the (clustered) Wald interval is taken, so that it is
    not empty where the two never differ. With repeats they are won and lost by as much as the items that differ.
    """
    sums, sizes = _differences(method, baseline, clusters)
    longer = extended(sums, sizes)
    centre = float(longer[0].sum() / longer[1].sum())
    half = z(level) * ratio_error(*longer)
    value = float(sums.sum() / sizes.sum())
    return Interval(value, max(-1.0, min(value, centre - half)), min(1.0, max(value, centre + half)))


def minimum_detectable(
    method: ArrayLike, baseline: ArrayLike, clusters: ArrayLike | None = None, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Smallest true difference that this design, with the spread seen, finds with probability ``power``."""
    error = ratio_error(*extended(*_differences(method, baseline, clusters)))
    return (NORMAL.inv_cdf(1 - alpha / 2) + NORMAL.inv_cdf(power)) * error


def mcnemar(method: ArrayLike, baseline: ArrayLike) -> float:
    """Exact two-sided p of McNemar's test for right/wrong (1/0) answers to the same items, one each."""
    difference = as_values(method) - as_values(baseline)
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    tail = sum(comb(wins + losses, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2 ** (wins + losses))


def sign_flip(method: ArrayLike, baseline: ArrayLike, clusters: ArrayLike | None = None, seed: int = 0) -> float:
    """Two-sided permutation p: under no difference an item's repeats could as well have changed sides, together.

    Exact up to 12 items that differ, else 20,000 seeded draws with the observed one counted in.
    """
    sums, _ = _differences(method, baseline, clusters)
    sums = sums[sums != 0]
    seen = abs(sums.sum()) * (1 - 1e-12)  # ties counted as ties, whatever the order of summation
    if len(sums) <= EXACT_CLUSTERS:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(sums))))
        return float((abs(signs @ sums) >= seen).mean()) if len(sums) else 1.0
    rng = np.random.default_rng(seed)
    extreme = sum(int((abs(_signs(rng, 1000, len(sums)) @ sums) >= seen).sum()) for _ in range(FLIPS // 1000))
    return (extreme + 1) / (FLIPS + 1)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    order = np.argsort(p)
    scaled = np.asarray(p, dtype=np.float64)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0) if len(p) else scaled
    return [float(value) for value in adjusted]


def compare(pairs: Mapping[str, Pair], seed: int = 0, alpha: float = 0.05) -> dict[str, Comparison]:
    """Every method against the baseline, Holm-corrected together.

    McNemar where each item has one right-or-wrong answer, else the clustered permutation test. What is detectable is
    so at the level that Holm asks of the smallest p, alpha / methods: a lone difference must pass that one.
    """
    adjusted = holm([_test(pair, seed) for pair in pairs.values()])
    detectable = [minimum_detectable(*pair, alpha / len(pairs)) for pair in pairs.values()]
    found = zip(pairs.items(), adjusted, detectable, strict=True)
    return {name: _comparison(pair, p, alpha, effect) for (name, pair), p, effect in found}


def _test(pair: Pair, seed: int) -> float:
    single = pair.clusters is None or len(np.unique(np.asarray(pair.clusters))) == as_values(pair.method).size
    binary = all(np.isin(as_values(scores), (0.0, 1.0)).all() for scores in pair[:2])
    return mcnemar(pair.method, pair.baseline) if single and binary else sign_flip(*pair, seed)


def _comparison(pair: Pair, p: float, alpha: float, detectable: float) -> Comparison:
    difference = paired_interval(*pair)
    items = len(_differences(*pair)[0])
    verdict: Verdict = "cannot tell"
    if p < alpha:
        verdict = "better" if difference.value > 0 else "worse"
    return Comparison(difference, p, detectable, items, verdict)


def _differences(method: ArrayLike, baseline: ArrayLike, clusters: ArrayLike | None) -> tuple[Floats, Floats]:
    ours, theirs = as_values(method), as_values(baseline)
    if ours.size != theirs.size:
        raise ValueError(f"paired scores: {ours.size} against {theirs.size}")
    return cluster_sums(ours - theirs, clusters)


def _signs(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    return np.asarray(rng.integers(0, 2, (rows, columns)), dtype=np.float64) * 2 - 1

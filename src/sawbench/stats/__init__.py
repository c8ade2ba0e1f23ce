"""Intervals and tests, in plain numpy: how far a number can be believed. Clusters are repeats of one item.

Everywhere ``values`` is [N] and ``clusters`` [N] names the item that each value belongs to (None: all distinct);
``level`` is two-sided. Random draws are seeded: the same numbers give the same interval.
"""

from sawbench.stats.bootstrap import mean_interval, recovered
from sawbench.stats.clusters import Interval, standard_error
from sawbench.stats.paired import (
    Comparison,
    Pair,
    compare,
    holm,
    mcnemar,
    minimum_detectable,
    paired_interval,
    sign_flip,
)
from sawbench.stats.proportion import pass_at_k, proportion_interval, wilson

__all__ = [
    "Comparison",
    "Interval",
    "Pair",
    "compare",
    "holm",
    "mcnemar",
    "mean_interval",
    "minimum_detectable",
    "paired_interval",
    "pass_at_k",
    "proportion_interval",
    "recovered",
    "sign_flip",
    "standard_error",
    "wilson",
]

"""Fidelity's samples to its metrics: pure, so that a record can be summarised again without a model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import numpy as np

from sawbench.core.records import Metric
from sawbench.stats.bootstrap import mean_interval

Sample = Mapping[str, Any]


def summarize(samples: Sequence[Sample], seed: int) -> list[Metric]:
    """Metrics over all answer tokens, with 95 % bootstrap intervals over prompts.

    A row of logits that is not finite makes KL and perplexity None, never a mean of the rest; its share is a metric.
    """
    tokens = sum(len(s["kl"]) for s in samples)
    broken = sum(value is None for s in samples for value in s["kl"])
    return [
        _mean("kl", "nats", samples, "kl", seed),
        _p99(samples),
        _floor(samples),
        _mean("top1", "share", samples, "agree", seed),
        _perplexity("perplexity", samples, "nll", seed),
        _perplexity("perplexity_reference", samples, "reference_nll", seed),
        *_divergence(samples),
        Metric("non_finite", broken / tokens, "share", n=tokens),
    ]


def layer_metrics(rows: Sequence[Sample]) -> list[Metric]:
    """Relative errors averaged over layers and KV heads; the table ``layers`` has each."""
    return [_error(side, [row[side] for row in rows]) for side in ("key", "value", "output")]


def _error(side: str, errors: Sequence[float | None]) -> Metric:
    known = [error for error in errors if error is not None and math.isfinite(error)]
    return Metric(f"{side}_error", fmean(known) if len(known) == len(errors) else None, "relative", n=len(errors))


def _values(samples: Sequence[Sample], field: str) -> tuple[list[float], list[int]] | None:
    """All values of a field and the prompt of each; None where one is not finite."""
    pairs = [(value, at) for at, sample in enumerate(samples) for value in sample[field]]
    if any(value is None for value, _ in pairs):
        return None
    return [float(value) for value, _ in pairs], [at for _, at in pairs]


def _mean(name: str, unit: str, samples: Sequence[Sample], field: str, seed: int) -> Metric:
    found = _values(samples, field)
    if found is None:
        return Metric(name, None, unit)
    values, prompts = found
    mean, low, high = mean_interval(values, prompts, seed=seed)
    return Metric(name, mean, unit, low, high, n=len(values))


def _perplexity(name: str, samples: Sequence[Sample], field: str, seed: int) -> Metric:
    nll = _mean(name, "perplexity", samples, field, seed)
    return replace(nll, value=_exp(nll.value), low=_exp(nll.low), high=_exp(nll.high))


def _p99(samples: Sequence[Sample]) -> Metric:
    found = _values(samples, "kl")
    if found is None:
        return Metric("kl_p99", None, "nats")
    return Metric("kl_p99", float(np.quantile(found[0], 0.99)), "nats", n=len(found[0]))


def _floor(samples: Sequence[Sample]) -> Metric:
    """KL between the method and itself in chunks of 3 tokens: what rounding alone does, as codes that flip cascade."""
    found = _values([s for s in samples if s["floor"] is not None], "floor")
    if not found or not found[0]:
        return Metric("kl_floor", None, "nats")
    return Metric("kl_floor", fmean(found[0]), "nats", n=len(found[0]))


def _divergence(samples: Sequence[Sample]) -> list[Metric]:
    """Median first position whose argmax differs (a prompt that never diverges counts as its length, so the median is
    a lower bound then), and the share of prompts that diverge."""
    first = [len(s["kl"]) if s["divergence"] is None else s["divergence"] for s in samples]
    diverged = fmean(s["divergence"] is not None for s in samples)
    return [
        Metric("first_divergence", float(median(first)), "tokens", n=len(samples)),
        Metric("diverged", diverged, "share", n=len(samples)),
    ]


def _exp(nats: float | None) -> float | None:
    return None if nats is None else math.exp(min(nats, 700.0))  # beyond, a double overflows

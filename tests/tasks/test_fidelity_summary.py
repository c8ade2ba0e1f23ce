"""From samples to metrics, without a model."""

import math
from dataclasses import asdict
from typing import Any

import pytest

from sawbench.core.replay import LayerError
from sawbench.tasks.fidelity_summary import layer_metrics, summarize


def sample(kl: list[float | None], divergence: int | None = None, floor: list[float] | None = None) -> dict[str, Any]:
    agree = [True] * len(kl) if divergence is None else [at < divergence for at in range(len(kl))]
    nll = [None if value is None else 1.0 for value in kl]
    return {"kl": kl, "agree": agree, "reference_nll": nll, "nll": nll, "floor": floor, "divergence": divergence}


def test_means_are_over_tokens_and_intervals_over_prompts() -> None:
    """All the variance lies between prompts here: an interval over tokens would be far too narrow."""
    found = {m.name: m for m in summarize([sample([0.0] * 90), sample([1.0] * 10, 4)], seed=0)}
    assert found["kl"].value == pytest.approx(0.1)
    assert (found["kl"].low, found["kl"].high) == (0.0, 1.0)
    assert (found["kl"].n, found["kl_p99"].value) == (100, 1.0)
    assert found["perplexity"].value == pytest.approx(math.e)
    assert (found["first_divergence"].value, found["diverged"].value) == (47.0, 0.5)
    assert found["top1"].value == pytest.approx(0.94)


def test_one_broken_row_leaves_no_mean() -> None:
    found = {m.name: m for m in summarize([sample([0.1, None]), sample([0.2, 0.3])], seed=0)}
    assert [found[name].value for name in ("kl", "kl_p99", "perplexity")] == [None] * 3
    assert found["non_finite"].value == 0.25


def test_the_floor_is_over_the_prompts_that_have_one() -> None:
    found = {m.name: m for m in summarize([sample([1.0, 1.0], floor=[0.1, 0.3]), sample([1.0])], seed=0)}
    assert (found["kl_floor"].value, found["kl_floor"].n) == (pytest.approx(0.2), 2)
    assert {m.name: m.value for m in summarize([sample([1.0])], seed=0)}["kl_floor"] is None


def test_errors_by_layer_are_averaged_over_heads() -> None:
    rows = [asdict(LayerError(0, 0, 0.1, 0.2, 0.3)), asdict(LayerError(0, 1, 0.3, 0.4, 0.5))]
    assert [m.value for m in layer_metrics(rows)] == pytest.approx([0.2, 0.3, 0.4])
    assert [m.value for m in layer_metrics([row | {"output": None} for row in rows])][2] is None

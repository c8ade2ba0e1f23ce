"""Metrics in a terminal: a score never stands without what explains it."""

import pytest

from sawbench.core.records import Metric
from sawbench.verbs.metrics import SIDE_BY_SIDE, SIGNS, metrics_table


def measured(score: Metric, *, count: int, name: str = "bdr") -> dict[str, list[Metric]]:
    signs = [Metric(sign, 12.5 + at, "%", n=164) for at, sign in enumerate(SIGNS)]
    rest = [Metric("answer_tokens", 321.5, "tokens"), Metric("bits_per_value", 4.25, "bits")]
    return {f"{name} {at}": [score, *signs, *rest] for at in range(count)}


@pytest.mark.parametrize("count", [1, SIDE_BY_SIDE, SIDE_BY_SIDE + 1, 20])
def test_what_explains_a_score_of_0_stands_beside_it_however_many_rows_there_are(count: int) -> None:
    text = metrics_table(measured(Metric("pass@1", 0.0, "%", 0.0, 2.289, 164), count=count))
    assert all(f"{12.5 + at:.4g}" in text for at in range(len(SIGNS)))
    assert "0 [0, 2.289]" in text


@pytest.mark.parametrize("count", [1, SIDE_BY_SIDE + 1])
def test_a_score_without_a_value_is_a_dash_under_its_own_name(count: int) -> None:
    text = metrics_table(measured(Metric("pass@1", None, "%", n=0), count=count))
    assert "pass@1 (%)" in text
    assert "-" in text.replace("--", "").split()


def test_many_rows_fit_a_terminal() -> None:
    label = "kmeans_bdr centroids=256"
    text = metrics_table(measured(Metric("pass@1", 67.68, "%", 60.16, 74.37, 164), count=9, name=label))
    assert max(map(len, text.splitlines())) <= 120
    assert "answer_tokens" not in text

"""Metrics of one or many runs as a table for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sawbench.core.records import Metric
from sawbench.verbs.table import table

SIDE_BY_SIDE = 3
"""Rows whose every metric still fits a screen, one column each."""
SIGNS = {
    "truncated": "cut",
    "no_answer": "no answer",
    "loops": "loops",
    "non_finite": "inf/nan",
    "unscored": "unscored",
}
"""Why a score is what it is, by the short headings of a wide table."""
SHORT = {**SIGNS, "accuracy_paper_rule": "paper's rule", "bits_per_value": "bits"}


def metrics_table(measured: Mapping[str, Sequence[Metric]]) -> str:
    """Metrics by the label of their run: all of them where there are few runs, the main ones where there are many."""
    return side_by_side(measured) if len(measured) <= SIDE_BY_SIDE else one_below_another(measured)


def side_by_side(measured: Mapping[str, Sequence[Metric]]) -> str:
    """Every metric, a column for each method; a metric that a method lacks is a dash."""
    names = dict.fromkeys(heading(metric) for metrics in measured.values() for metric in metrics)
    columns = [{heading(metric): text_of(metric) for metric in metrics} for metrics in measured.values()]
    return table(["", *measured], [[name, *(column.get(name, "-") for column in columns)] for name in names])


def one_below_another(measured: Mapping[str, Sequence[Metric]]) -> str:
    """A row for each method: its score, what else carries an interval, the signs of why a score is 0, the bits stored;
    the CSV files have all metrics."""
    chosen = {
        label: {
            heading(metric): text_of(metric)
            for metric in (replace(m, name=SHORT.get(m.name, m.name)) for m in metrics if _is_main(m, metrics[0]))
        }
        for label, metrics in measured.items()
    }
    names = list(dict.fromkeys(name for row in chosen.values() for name in row))
    return table(
        ["method", *names], [[label, *(row.get(name, "-") for name in names)] for label, row in chosen.items()]
    )


def _is_main(metric: Metric, score: Metric) -> bool:
    return metric is score or metric.low is not None or metric.name in SHORT


def heading(metric: Metric) -> str:
    return metric.name if metric.unit in ("", metric.name) else f"{metric.name} ({metric.unit})"


def text_of(metric: Metric) -> str:
    """Four digits, and the interval where there is one."""
    if metric.value is None:
        return "-"
    interval = "" if metric.low is None else f" [{metric.low:.4g}, {metric.high:.4g}]"
    return f"{metric.value:.4g}{interval}"

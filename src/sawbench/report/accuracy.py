"""Scores of benchmarks: each method beside the baseline, on the same answers, with a verdict that knows its limits."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan

import pandas as pd

from sawbench.report.content import Table, Value
from sawbench.report.naming import names, slug
from sawbench.report.records import Number, Run, Study, by_score, servable
from sawbench.stats import Comparison, Interval, Pair, compare, recovered, standard_error

SUFFIX = "_scores"
SUBTASK = "/"
"""Stands between a task of a group and its metric."""
BASELINE, COLLAPSED = "bf16", "int4"
BESIDE = {
    "accuracy_paper_rule": "by the paper's rule (%)",
    "pass@5": "pass@5 (%)",
    "pass@10": "pass@10 (%)",
    "pass@100": "pass@100 (%)",
    "truncated": "cut by the limit (%)",
    "no_answer": "no answer (%)",
    "loops": "loops (%)",
    "non_finite": "non-finite (%)",
    "unscored": "unscored (%)",
    "answer_tokens": "tokens per answer",
    "bits_per_value": "stored bits per value",
}
NOTES = (
    "Brackets: 95 % intervals; items and answers: those that were scored; standard error: repeats of one item are one "
    "cluster. Difference: paired over the same answers. "
    "p: exact McNemar (one right-or-wrong answer an item) or clustered permutation, Holm-corrected over this table. "
    "Detectable: the true difference that this design finds with probability 0.8 at the level that Holm asks of the "
    "smallest p, 0.05 / comparisons of this table; a smaller one is not ruled out. "
    "Recovered: (method - int4) / (bf16 - int4), where int4 is shown to lose; bootstrap over the items and two "
    "imagined ones, one gained and one given away, so that no interval is empty.",
)


def tables(study: Study) -> Iterator[Table]:
    """One table for each task, model, setting and metric that has scores, and one of the subtasks that have none."""
    for task in sorted(name.removesuffix(SUFFIX) for name in study.tables if name.endswith(SUFFIX)):
        groups = study.groups(task)
        for key, stem in names(list(groups)).items():
            runs = groups[key]
            parts = by_metric(runs, study.table(f"{task}{SUFFIX}"))
            for metric, scores in parts.items():
                name = f"{task}-{stem}" if len(parts) == 1 else slug(task, stem, metric)
                yield comparison(name, task, key, [replace(run, headline=metric) for run in runs], scores)
            yield from subtasks(f"{task}-{stem}-subtasks", task, key, runs, study.table("metrics"), parts)


def by_metric(runs: Sequence[Run], scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of ``runs`` by the metric that they are the items of: by the column ``metric`` where there is one."""
    ours = scores[scores["run"].isin([run.id for run in runs])]
    if "metric" in ours and ours["metric"].notna().any():
        return {str(metric): rows for metric, rows in ours.groupby("metric", sort=False)}
    return {next(filter(None, (_held(run, scores_of(ours, run.id)) for run in runs)), runs[0].headline): ours}


def _held(run: Run, values: "pd.Series[float]") -> str:
    """The metric of which these are the items. A group of tasks reports its own mean first, which has none."""
    mean = 100 * values.mean()
    means = [run.headline, *(name for name in run.metrics if SUBTASK in name)]
    return next((name for name in means if name in run.metrics and abs(run.metrics[name].value - mean) < 1e-3), "")


def subtasks(
    name: str, task: str, key: tuple[str, str], runs: Sequence[Run], metrics: pd.DataFrame, shown: Collection[str]
) -> Iterator[Table]:
    """The scores of a group of tasks that are not among ``shown``: a row for each of them and each method."""
    by_id = {run.id: run for run in runs}
    wanted = metrics["metric"].str.contains(SUBTASK, regex=False) & ~metrics["metric"].isin([*shown])
    found = metrics[wanted & metrics["run"].isin([*by_id])].fillna({"unit": ""})
    rows: list[list[Value]] = [
        [str(metric), by_id[run].label, by_id[run].metrics.get(str(metric)), unit, run]
        for metric, part in found.groupby("metric", sort=False)
        for run, unit in zip(part["run"], part["unit"], strict=True)
    ]
    if rows:
        yield Table(
            name, f"Subtasks of {task} of {key[0]}", ["score", "method", "value", "unit", "run"], rows,
            [f"Setting: {key[1]}.", "Brackets: 95 % intervals. No items of these scores are on record to compare."],
        )  # fmt: skip


def comparison(name: str, task: str, key: tuple[str, str], runs: Sequence[Run], scores: pd.DataFrame) -> Table:
    """Rows by falling score, in percent; a run whose answers were not scored is compared with nothing."""
    series = {run.id: scores_of(scores, run.id) for run in runs}
    base = next((run.id for run in runs if run.keys["method"] == BASELINE), None)
    found = against(series, base) if base is not None else {}
    regained = regain(series, runs, base)
    ordered = by_score(runs)
    beside = [metric for metric in BESIDE if any(metric in run.metrics for run in runs)]
    head, served, reasons = servable(ordered)
    return Table(
        name,
        f"{task} of {key[0]}",
        ["method", f"{runs[0].headline} (%)", "items", "answers", "standard error (points)",
         "difference to bf16 (points)", "p", "detectable (points)", "recovered (share)", "verdict",
         *(BESIDE[metric] for metric in beside), *head, "run"],
        [
            [*_row(run, series[run.id], found.get(run.id), regained.get(run.id), run.id == base, beside),
             *served[run.id], run.id]
            for run in ordered
        ],
        [f"Setting: {key[1]}.", *NOTES, *reasons],
    )  # fmt: skip


def scores_of(scores: pd.DataFrame, run: str) -> "pd.Series[float]":
    """A run's values in [0, 1] by (item, repeat); unscored answers are left out: they are not wrong."""
    rows = scores[scores["run"] == run].reindex(columns=["item", "repeat", "value"]).set_index(["item", "repeat"])
    return rows["value"].astype(float).dropna()


def against(series: Mapping[str, "pd.Series[float]"], base: str) -> dict[str, Comparison]:
    """Every run against the baseline on the answers that both have."""
    pairs = {}
    for run, values in series.items():
        shared = values.index.intersection(series[base].index)
        if run != base and len(shared):
            pairs[run] = Pair(values[shared], series[base][shared], shared.get_level_values("item").astype(str))
    return compare(pairs)


def regain(series: Mapping[str, "pd.Series[float]"], runs: Sequence[Run], base: str | None) -> dict[str, Interval]:
    """What of the collapse each run gives back, where naive INT4 ran too."""
    worst = next((run.id for run in runs if run.keys["method"] == COLLAPSED and not run.keys["options"]), None)
    found: dict[str, Interval] = {}
    if base is None or worst is None:
        return found
    for run, values in series.items():
        shared = values.index.intersection(series[base].index).intersection(series[worst].index)
        if run not in (base, worst) and len(shared):
            items = shared.get_level_values("item").astype(str)
            found[run] = recovered(values[shared], series[worst][shared], series[base][shared], items)
    return found


def _row(
    run: Run,
    values: "pd.Series[float]",
    found: Comparison | None,
    regained: Interval | None,
    baseline: bool,
    beside: Sequence[str],
) -> list[Value]:
    """A row up to its last columns. A run that shares no answers with the baseline has dashes, and no verdict."""
    compared: list[Value] = [None, None, None]
    if found is not None:
        difference = Number(*found.difference, run.id)
        compared = [difference * 100, Number(found.p), Number(100 * found.detectable)]
    return [
        run.label,
        run.score,
        *_size(values, run.id),
        *compared,
        None if regained is None else _number(regained, run.id),
        _verdict(run, found, baseline),
        *(run.metrics.get(metric) for metric in beside),
    ]


def _size(values: "pd.Series[float]", run: str) -> list[Value]:
    """Items and answers that were scored, and the clustered standard error of their mean in points."""
    if values.empty:
        return [Number(0, run=run), Number(0, run=run), None]
    items = values.index.get_level_values("item").astype(str)
    error = standard_error(values, items)
    counts = [Number(items.nunique(), run=run), Number(len(values), run=run)]
    return [*counts, None if isnan(error) else Number(100 * error, run=run)]


def _verdict(run: Run, found: Comparison | None, baseline: bool) -> str:
    if run.score is None:
        return "unscored"
    return "baseline" if baseline else found.verdict if found else "no pairs"


def _number(interval: Interval, run: str) -> Number | None:
    """None for what is not defined: a share of nothing, or of a loss that the answers do not show."""
    return None if isnan(interval.value) or isnan(interval.low) else Number(*interval, run)

"""Retrieval from long context: share found against length, from every task table with columns length and score."""

from collections.abc import Iterator
from math import isnan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from sawbench.report.content import Drawing, Table, Value
from sawbench.report.naming import names
from sawbench.report.records import Number, Run, Study, by_score
from sawbench.report.style import colour, headline, label_points, look, marker


def contents(study: Study) -> Iterator[Drawing | Table]:
    """For each task, model and setting a figure where several lengths were asked, and a table."""
    for name, frame in study.tables.items():
        if not {"length", "score", "n"} <= set(frame.columns) or frame.empty:
            continue
        task = str(frame["task"].iloc[0])
        groups = study.groups(task)
        for key, stem in names(list(groups)).items():
            rows = frame[frame["run"].isin([run.id for run in groups[key]])]
            grid = by_length(rows).reindex([run.id for run in groups[key]])
            if grid.shape[1] > 1:
                labels = {run.id: run.label for run in groups[key]}
                yield drawing(f"{task}-{stem}", task, key, grid.rename(index=labels), name)
            yield table(f"{task}-{stem}-lengths", task, key, groups[key], grid)


def by_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Share found by run and length: the mean over the table's other axes, weighted by questions; NaN where none was
    scored."""
    scored = rows[rows["score"].notna()]
    weighted = scored.assign(found=scored["score"] * scored["n"]).groupby(["run", "length"])[["found", "n"]].sum()
    return (weighted["found"] / weighted["n"]).unstack("length")


def table(name: str, task: str, key: tuple[str, str], runs: list[Run], grid: pd.DataFrame) -> Table:
    """One row a method, one column a length, and the share over all."""
    rows: list[list[Value]] = []
    for run in by_score(runs):
        shares = [None if isnan(x) else Number(x, run=run.id) for x in grid.loc[[run.id]].to_numpy(float)[0].tolist()]
        rows.append([run.label, run.score, *shares, run.id])
    columns = ["method", "found (%)", *(f"{length} tokens" for length in grid.columns), "run"]
    notes = [f"Setting: {key[1]}. Brackets: 95 % Wilson intervals. By length: shares."]
    return Table(name, f"{task} of {key[0]} by length", columns, rows, notes)


def drawing(name: str, task: str, key: tuple[str, str], grid: pd.DataFrame, source: str) -> Drawing:
    """One line a method, from ``grid`` [label, length]; labels at the longest context that was scored."""
    lengths = [float(length) for length in grid.columns]
    with look():
        figure = Figure(figsize=(7.2, max(4.2, 1.2 + 0.16 * len(grid))), layout="constrained")  # 0.16 inch a label
        axes = figure.subplots()
        ends = []
        for label, shares in zip(map(str, grid.index), grid.to_numpy(float), strict=True):
            axes.plot(lengths, shares, marker=marker(label), markersize=4, color=colour(label), linewidth=1.3)
            known = np.flatnonzero(np.isfinite(shares))
            ends += [(lengths[at], float(shares[at]), label, colour(label)) for at in known[-1:]]
        axes.set(xscale="log", xlabel="context (tokens, log)", ylabel="share found", ylim=(-0.03, 1.06))
        axes.set_xticks(lengths)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.set_xlim(lengths[0] / 1.1, lengths[-1] * (lengths[-1] / lengths[0]) ** 0.35)
        headline(figure, f"{key[0]}: {task} by length")
        label_points(axes, ends)
    return Drawing(name, f"{task} by length: {key[0]}", f"{key[0]}; {key[1]}.", figure, [f"{source}.csv"])

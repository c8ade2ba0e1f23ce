"""Decode steps alone: where their time goes (the paper's Table 4), what rotation costs, how near the bytes' floor.

Any CSV of results/throughput serves by its columns (throughput.profile, throughput.steps): a split has ``row`` (MatMul,
Attention, ...), ``step_us`` and ``value`` (ns of one layer in one step) by ``method``; an overhead has
``overhead_pct, low_pct, high_pct``; a floor has ``step_ms, floor_ms, over_floor``.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sawbench.report.content import Drawing, Table, Value
from sawbench.report.naming import slug
from sawbench.report.records import Number, Study
from sawbench.report.style import headline, look

PARTS = {
    "MatMul": "#0072B2",
    "Attention": "#E69F00",
    "set_kv": "#009E73",
    "outside rotation": "#D55E00",
    "Comm": "#999999",
    "Norm/Act/RoPE": "#56B4E9",
    "Sampling": "#CC79A7",
    "Host": "#444444",
}
PUBLISHED = "published: Qwen3-32B, two H100, batch 32, 16k context"
NAMES = ("model", "method", "base", "batch", "context")
STEP = ["model", "batch", "context"]
PAPERS_STEP = (32, 16384)
TABLE7 = {"Attn": "Attention", "norm etc": "Norm/Act/RoPE", "rotation": "outside rotation"}
"""Parts that Table 7 names otherwise than Table 4."""


def contents(study: Study) -> Iterator[Drawing | Table]:
    """What each file of results/throughput holds of the three kinds; a split for each model, batch and context."""
    for name, frame in study.throughput.items():
        if "method" not in frame:
            continue
        frame = labelled(frame)
        if {"row", "value", *STEP} <= set(frame.columns):
            for _, rows in frame.dropna(subset=["value"]).groupby(STEP, sort=False):
                yield from _splits(study, name, rows)
        if {"overhead_pct", "low_pct", "high_pct"} <= set(frame.columns):
            yield overhead(slug("overhead", name), frame.dropna(subset=["overhead_pct"]))
        if {"step_ms", "floor_ms", "over_floor"} <= set(frame.columns):
            yield floors(slug("decode-floor", name), frame.dropna(subset=["step_ms"]))


def _splits(study: Study, name: str, rows: pd.DataFrame) -> Iterator[Drawing | Table]:
    """Picture and table of one model, batch and context."""
    model, batch, context = (rows.iloc[0][column] for column in STEP)
    step = int(batch), int(context)
    stem = slug("decode", name, str(model), "{}x{}".format(*step))
    title = f"{model}, batch {step[0]}, {step[1] / 1024:g}k context"
    yield split(stem, title, rows, table4(study) if step == PAPERS_STEP else pd.DataFrame(), name)
    yield split_table(stem, title, rows, published(study, *step))


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """Methods with their options: rotations left unfused are another row than fused ones."""
    if "options" not in frame:
        return frame
    return frame.assign(method=(frame["method"] + " " + frame["options"].fillna("").astype(str)).str.strip())


def table4(study: Study) -> pd.DataFrame:
    """The paper's split at batch 32: ``row``, ``variant``, ``value`` in ns."""
    return study.paper.get("kernel_decode_breakdown_ns", pd.DataFrame())


def published(study: Study, batch: int, context: int) -> pd.DataFrame:
    """What the paper has of this batch and context: Table 4, else Table 7 (which lists what differs alone)."""
    table7 = study.paper.get("kernel_decode_by_batch_us", pd.DataFrame())
    if (batch, context) == PAPERS_STEP or context != PAPERS_STEP[1] or table7.empty:
        return table4(study) if (batch, context) == PAPERS_STEP else pd.DataFrame()
    rows = table7[table7["batch"].astype(str).str.removeprefix("bs") == str(batch)]
    names = rows["row"].str.extract(r"(?P<variant>\S+) (?P<row>.+)").replace({"row": TABLE7})
    return names.assign(value=1000 * rows["value"])


def split(name: str, title: str, frame: pd.DataFrame, paper: pd.DataFrame, source: str) -> Drawing:
    """Shares of a step, one bar a method; the paper's below, as shares too: its times are another machine's."""
    ours = shares(frame.rename(columns={"method": "variant"}))
    theirs = shares(paper) if not paper.empty else pd.DataFrame()
    with look():
        figure = Figure(figsize=(9, 1.7 + 0.34 * (len(ours) + len(theirs))), layout="constrained")
        grids = [grid for grid in (ours, theirs) if len(grid)]
        heights = [len(grid) for grid in grids]
        panels = figure.subplots(len(grids), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, grid, above in zip(panels, grids, (f"measured: {title}", PUBLISHED), strict=False):
            _bars(axes, grid, above)
        panels[-1].set_xlabel("share of a decode step (%)")
        keys = [Patch(color=PARTS[part], label=part) for part in PARTS if any(part in grid for grid in grids)]
        figure.legend(handles=keys, loc="outside lower center", ncols=8, fontsize=7.5, frameon=False)
        headline(figure, "Where a decode step's time goes")
    caption = "From a profiler pass of its own, never from a run whose time is reported."
    return Drawing(name, f"Decode step by part: {title}", caption, figure, [f"throughput/{source}.csv"])


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Per cent of the step by variant (rows) and part (columns), in the order of PARTS."""
    parts = frame[frame["row"] != "TOTAL"]
    grid = parts.pivot_table(index="variant", columns="row", values="value", aggfunc="mean", sort=False).fillna(0.0)
    grid = grid[[part for part in PARTS if part in grid]]
    return grid.div(grid.sum(axis=1), axis=0) * 100


def split_table(name: str, title: str, frame: pd.DataFrame, paper: pd.DataFrame) -> Table:
    """Nanoseconds of one layer in one step by part; the paper's in columns of their own."""
    ours = frame.pivot_table(index="row", columns="method", values="value", aggfunc="mean", sort=False)
    theirs = paper.pivot_table(index="row", columns="variant", values="value", sort=False) if len(paper) else paper
    rows: list[list[Value]] = []
    for part in [*PARTS, "TOTAL"]:
        found = [_at(ours, part, column) for column in ours] + [_at(theirs, part, column) for column in theirs]
        if any(value is not None for value in found):
            rows.append([part, *found])
    columns = ["part", *(f"{column} (ns)" for column in ours), *(f"paper: {column} (ns)" for column in theirs)]
    notes = ["One layer in one step.", "Paper: Qwen3-32B on two H100, Table 4 at batch 32, Table 7 else."]
    return Table(name, f"Decode step by part: {title}", columns, rows, notes)


def overhead(name: str, frame: pd.DataFrame) -> Table:
    """What one method's step costs over another's, with the noise of the comparison."""
    present = [column for column in NAMES if column in frame]
    rows: list[list[Value]] = [
        [*(str(row[c]) for c in present), Number(row["overhead_pct"], row["low_pct"], row["high_pct"])]
        for row in frame.to_dict("records")
    ]
    note = "Blocks of steps, interleaved A B A B; median pair, 95 % bootstrap interval over pairs and steps."
    return Table(name, "Overhead of a decode step", [*present, "overhead (%)"], rows, [note])


def floors(name: str, frame: pd.DataFrame) -> Table:
    """Median steps beside the time that their bytes alone take."""
    present = [column for column in NAMES if column in frame]
    rows: list[list[Value]] = [
        [*(str(row[c]) for c in present), *(Number(row[c]) for c in ("step_ms", "floor_ms", "over_floor"))]
        for row in frame.to_dict("records")
    ]
    columns = [*present, "step (ms)", "floor (ms)", "step / floor"]
    return Table(
        name, "Decode step against its floor", columns, rows, ["Floor: weight and cache bytes over bandwidth."]
    )


def _bars(axes: Axes, grid: pd.DataFrame, title: str) -> None:
    names = [str(name) for name in grid.index]
    left = np.zeros(len(names))
    for part in map(str, grid.columns):
        widths = grid[part].to_numpy(float)
        bars = axes.barh(names, widths, left=left, color=PARTS[part], height=0.7)
        shown = [f"{width:.0f}" if width > 6 else "" for width in widths]
        axes.bar_label(bars, shown, label_type="center", color="white", fontsize=7.5)
        left += widths
    axes.set(title=title, xlim=(0, 100))
    axes.invert_yaxis()
    axes.grid(False)


def _at(grid: pd.DataFrame, part: str, column: object) -> Number | None:
    value = grid[column].get(part)
    return None if value is None or pd.isna(value) else Number(float(value))

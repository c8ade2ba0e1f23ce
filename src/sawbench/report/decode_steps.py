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
from sawbench.report.fidelity import slug
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
NAMES = ("model", "method", "method_a", "method_b", "batch", "context")


def contents(study: Study) -> Iterator[Drawing | Table]:
    """What each file of results/throughput holds of the three kinds."""
    paper = study.paper.get("kernel_decode_breakdown_ns", pd.DataFrame())
    for name, frame in study.throughput.items():
        if {"row", "method", "value"} <= set(frame.columns):
            yield split(slug("decode-split", name), frame, paper, name)
            yield split_table(slug("decode-split", name), frame, paper)
        if {"overhead_pct", "low_pct", "high_pct"} <= set(frame.columns):
            yield overhead(slug("overhead", name), frame)
        if {"step_ms", "floor_ms", "over_floor"} <= set(frame.columns):
            yield floors(slug("decode-floor", name), frame)


def split(name: str, frame: pd.DataFrame, paper: pd.DataFrame, source: str) -> Drawing:
    """Shares of a step, one bar a method; the paper's below, as shares too: its times are another machine's."""
    ours = shares(frame.rename(columns={"method": "variant"}))
    theirs = shares(paper) if not paper.empty else pd.DataFrame()
    with look():
        figure = Figure(figsize=(9, 1.7 + 0.34 * (len(ours) + len(theirs))), layout="constrained")
        grids = [grid for grid in (ours, theirs) if len(grid)]
        heights = [len(grid) for grid in grids]
        panels = figure.subplots(len(grids), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, grid, title in zip(panels, grids, ("measured", PUBLISHED), strict=False):
            _bars(axes, grid, title)
        panels[-1].set_xlabel("share of a decode step (%)")
        keys = [Patch(color=PARTS[part], label=part) for part in PARTS if any(part in grid for grid in grids)]
        figure.legend(handles=keys, loc="outside lower center", ncols=8, fontsize=7.5, frameon=False)
        headline(figure, "Where a decode step's time goes")
    caption = "From a profiler pass of its own, never from a run whose time is reported."
    return Drawing(name, "Decode step by part", caption, figure, [f"throughput/{source}.csv"])


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Per cent of the step by variant (rows) and part (columns), in the order of PARTS."""
    parts = frame[frame["row"] != "TOTAL"]
    grid = parts.pivot_table(index="variant", columns="row", values="value", aggfunc="mean", sort=False).fillna(0.0)
    grid = grid[[part for part in PARTS if part in grid]]
    return grid.div(grid.sum(axis=1), axis=0) * 100


def split_table(name: str, frame: pd.DataFrame, paper: pd.DataFrame) -> Table:
    """Nanoseconds of one layer in one step by part; the paper's in columns of their own."""
    ours = frame.pivot_table(index="row", columns="method", values="value", aggfunc="mean", sort=False)
    theirs = paper.pivot_table(index="row", columns="variant", values="value", sort=False) if len(paper) else paper
    rows: list[list[Value]] = []
    for part in [*PARTS, "TOTAL"]:
        found = [_at(ours, part, column) for column in ours] + [_at(theirs, part, column) for column in theirs]
        if any(value is not None for value in found):
            rows.append([part, *found])
    columns = ["part", *(f"{column} (ns)" for column in ours), *(f"paper: {column} (ns)" for column in theirs)]
    return Table(name, "Decode step by part: one layer, one step", columns, rows, ["Paper: Table 4, another machine."])


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

"""Kernels against what their bytes cost: results/kernels/*.csv, one row a kernel and shape.

Columns (throughput.kernel_bench.Row): family, kernel, batch, context, query_heads, kv_heads, head_dim, page_size,
bytes, floor_us, time_us, low_us, high_us, tb_per_s, fraction (floor over time), vs_bf16 (time of the best BF16 peer
over ours), error, note. A row without a time was skipped or wrong; its note says why.
"""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from sawbench.report.content import Drawing, Table, Value
from sawbench.report.naming import slug
from sawbench.report.records import Number, Study
from sawbench.report.style import HALO, colour, headline, label_points, look

SHAPE = ["query_heads", "kv_heads", "head_dim", "page_size"]
NEEDED = {"family", "kernel", "batch", "context", "time_us", "fraction", "vs_bf16", *SHAPE}
PANELS = 3  # in a row
PEERS = ("sdpa", "flashinfer", "fbgemm")


def contents(study: Study) -> Iterator[Drawing | Table]:
    """For every file and family: the roofline figure, the ratio to BF16, and the table."""
    for name, frame in study.kernels.items():
        if not set(frame.columns) >= NEEDED:
            continue
        for family, rows in frame.groupby("family", sort=False):
            timed = rows[rows["time_us"].notna()]
            for value, ending in (("fraction", "fraction"), ("vs_bf16", "ratio")):
                if timed[value].notna().any():
                    draw = curves if timed.groupby("batch")["context"].nunique().max() > 1 else bars
                    yield draw(slug("kernels", name, str(family), ending), str(family), timed, value, name)
            yield table(slug("kernels", name, str(family)), str(family), rows)


def most_common(rows: pd.DataFrame, value: str) -> tuple[pd.DataFrame, str]:
    """Rows that have ``value``, of the heads and pages that most of them share, and what those are."""
    rows = rows[rows[value].notna()]
    shape = rows[SHAPE].value_counts().index[0]
    heads = "{}/{} query and KV heads, head size {}, pages of {} tokens".format(*shape)
    return rows[(rows[SHAPE] == list(shape)).all(axis=1)], heads


def bars(name: str, family: str, rows: pd.DataFrame, value: str, source: str) -> Drawing:
    """One panel a shape, one bar a kernel: for batches that were measured at one context each."""
    chosen, heads = most_common(rows, value)
    chosen = chosen.sort_values("batch", kind="stable")
    names = chosen["batch"].astype(str) + " x " + (chosen["context"] / 1024).map("{:g}k".format)
    shapes = list(chosen.groupby(names, sort=False))
    most = max(len(kernels) for _, kernels in shapes)
    with look():
        figure = Figure(figsize=(1.5 + 2.6 * len(shapes), 1.1 + 0.24 * most), layout="constrained")
        for axes, (shape, kernels) in zip(figure.subplots(1, len(shapes), squeeze=False)[0], shapes, strict=True):
            labels = [str(kernel) for kernel in kernels["kernel"]]
            drawn = axes.barh(labels, kernels[value], color=[tint(kernel) for kernel in labels])
            axes.bar_label(drawn, fmt=" %.2f", fontsize=7, path_effects=[HALO])
            axes.axvline(1.0, color="#888888", linewidth=0.8)
            axes.set(title=shape, xlim=(0, 1.18 * max(1.0, chosen[value].max())))
            axes.invert_yaxis()
            axes.grid(False, axis="y")
        figure.supxlabel(LABELS[value], fontsize=9)
        headline(figure, f"{family}, batch x context: {TITLES[value]}")
    return Drawing(name, f"{family}: {TITLES[value]}", f"{heads}. {CAPTIONS[value]}", figure, [f"kernels/{source}.csv"])


def curves(name: str, family: str, rows: pd.DataFrame, value: str, source: str) -> Drawing:
    """One panel a batch size, one line a kernel over context."""
    chosen, heads = most_common(rows, value)
    batches = sorted(chosen["batch"].unique())
    columns = min(len(batches), PANELS)
    lines = -(-len(batches) // columns)
    with look():
        figure = Figure(figsize=(1 + 4.2 * columns, 0.5 + 3.9 * lines), layout="constrained")
        panels = [figure.add_subplot(lines, columns, 1 + at) for at in range(len(batches))]
        for axes, batch in zip(panels, batches, strict=True):
            _panel(axes, chosen[chosen["batch"] == batch], value, int(batch))
            axes.set_ylim(0, max(1.0, float(chosen[value].max())) * 1.06)
            axes.set_ylabel(LABELS[value])
        headline(figure, f"{family}: {TITLES[value]}")
        for axes, batch in zip(panels, batches, strict=True):
            label_points(axes, _ends(chosen[chosen["batch"] == batch], value), gap=9.5, size=7)
    return Drawing(name, f"{family}: {TITLES[value]}", f"{heads}. {CAPTIONS[value]}", figure, [f"kernels/{source}.csv"])


TITLES = {"fraction": "share of the bandwidth bound", "vs_bf16": "speed against the best BF16 attention"}
LABELS = {"fraction": "floor / time (1: copy bandwidth)", "vs_bf16": "time of best BF16 peer / time"}
CAPTIONS = {
    "fraction": "Floor: bytes that a step must move over the copy bandwidth measured in the same run. Medians of "
    "CUDA-graph replays. A copy writes half of its bytes: a kernel that only reads can pass 1. Grey: peers.",
    "vs_bf16": "Best BF16: the fastest of torch SDPA's backends and our own paged BF16 on the same shape in the same "
    "process. Grey: peers.",
}


def table(name: str, family: str, rows: pd.DataFrame) -> Table:
    """Every row, the skipped and the wrong ones with their note."""
    numbers = {
        "time_us": "time (us)", "floor_us": "floor (us)", "tb_per_s": "TB/s", "fraction": "share of the bound",
        "vs_bf16": "speed against best BF16", "error": "relative error",
    }  # fmt: skip
    present = [column for column in numbers if column in rows]
    columns = ["kernel", "batch", "context", "heads", "head size", "page", *(numbers[c] for c in present), "note"]
    cells = [_row(row, present) for row in rows.to_dict("records")]
    return Table(name, f"{family}: every shape", columns, cells, ["Intervals: 10th to 90th percentile of replays."])


def _row(row: dict[object, object], present: Sequence[str]) -> list[Value]:
    shape: list[Value] = [str(row["kernel"]), Number(_float(row["batch"])), Number(_float(row["context"]))]
    shape += [f"{row['query_heads']}/{row['kv_heads']}", str(row["head_dim"]), str(row["page_size"])]
    note = row.get("note")
    return [*shape, *(_number(row, column) for column in present), "" if pd.isna(note) else str(note)]  # type: ignore[call-overload]


def _number(row: dict[object, object], column: str) -> Number | None:
    value = _float(row[column])
    if value != value:
        return None
    if column != "time_us" or "low_us" not in row:
        return Number(value)
    return Number(value, _float(row["low_us"]), _float(row["high_us"]))


def _float(value: object) -> float:
    return float("nan") if value is None else float(str(value))


def _panel(axes: Axes, rows: pd.DataFrame, value: str, batch: int) -> None:
    for kernel, line in rows.sort_values("context").groupby("kernel", sort=False):
        peer = str(kernel).startswith(PEERS)
        (drawn,) = axes.plot(line["context"], line[value], "o--" if peer else "o-", color=tint(str(kernel)))
        drawn.set(linewidth=1.0 if peer else 1.5, markersize=3)
    axes.axhline(1.0, color="#888888", linewidth=0.8)
    axes.set(title=f"batch {batch}", xscale="log", xlabel="context (tokens, log)")
    axes.set_xticks(sorted(rows["context"].unique()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}k"))
    low, high = rows["context"].min(), rows["context"].max()
    axes.set_xlim(low / 1.2, high * max(high / low, 2) ** 0.55)


def tint(kernel: str) -> str:
    """A method's colour for our kernels, greys for peers."""
    return "#777777" if kernel.startswith(PEERS) else colour(kernel)


def _ends(rows: pd.DataFrame, value: str) -> list[tuple[float, float, str, str]]:
    last = rows.sort_values("context").groupby("kernel", sort=False).tail(1)
    return [
        (float(r["context"]), float(r[value]), str(r["kernel"]), tint(str(r["kernel"]))) for _, r in last.iterrows()
    ]

"""Throughput: measured beside published, as ratios to BF16, and the curves of the measured sweep.

results/throughput/*.csv, one row a cell: model, method, options, load (``d16384_1024``), concurrency, output_tps
(output tokens/s of the job), output_tps_request (mean over requests of (output tokens - 1) / (end to end - time to
first token)), ttft_ms (mean), gpus, error. Absolute numbers of other hardware are never set side by side: only ratios
to BF16 are.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sawbench.core.records import pool_gigabytes
from sawbench.report import ranking
from sawbench.report.content import Drawing, Table, Value
from sawbench.report.naming import slug
from sawbench.report.paper_loads import Key, PaperCell, cells, not_run
from sawbench.report.records import Number, Study
from sawbench.report.style import colour, headline, label_points, look, marker

NEEDED = {"model", "method", "load", "concurrency", "output_tps"}
SETTINGS: tuple[tuple[str, Callable[[float], float], str], ...] = (
    ("pool_bytes", pool_gigabytes, ", pool of {:.0f} GB"),
    ("chunk", float, ", chunks of {:.0f}"),
)
"""Columns in which rows that may be compared are alike, as what they count, and what is said of a row that is not."""
PEER = "generate_batch"
"""Another engine: a row of the tables, and too far off for a figure of methods."""
REPEATS = "repeats"
"""The file whose rows are one cell several times."""


def contents(study: Study) -> Iterator[Drawing | Table]:
    """For each file: the order of methods; for each model three figures a load, and the ratios; then the paper's loads
    that did not run here."""
    theirs, measured = cells(study), set[Key]()
    for name, frame in study.throughput.items():
        if not set(frame.columns) >= NEEDED:
            continue
        frame = labelled(frame)
        if name == REPEATS:
            yield spread(frame)
            continue
        measured |= {place(row) for row in frame[frame["output_tps"].notna()].to_dict("records")}
        ours = frame[frame["output_tps"].notna() & (frame["method"] != PEER)]
        yield from ranking.drawings(ours, theirs, name)
        for model, rows in frame.groupby("model", sort=False):
            for load, done in ours[ours["model"] == model].groupby("load", sort=False):
                if done["concurrency"].nunique() > 1:
                    yield drawing(slug("throughput", name, str(model), str(load)), f"{model}, {load}", done, name)
            yield table(slug("throughput", name, str(model)), str(model), rows, theirs)
    if (missing := not_run(study, measured)) is not None:
        yield missing


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """With the row label, and with throughput and its bound as ratios to BF16 of the same model, load, concurrency,
    size of the pool and prompt chunk."""
    options = frame["options"] if "options" in frame else pd.Series("", index=frame.index)
    frame = frame.assign(label=(frame["method"] + " " + options.fillna("").astype(str)).str.strip())
    if "bound_tps" not in frame:
        frame = frame.assign(bound_tps=float("nan"))
    frame = _by_setting(frame)
    cell = ["model", "load", "concurrency"]
    base = frame[frame["label"] == "bf16"].drop_duplicates(cell).set_index(cell)[["output_tps", "bound_tps"]]
    joined = frame.join(base.add_suffix("_base"), on=cell)
    return joined.assign(
        ratio=joined["output_tps"] / joined["output_tps_base"],
        bound_ratio=joined["bound_tps"] / joined["bound_tps_base"],
        of_bound=joined["output_tps"] / joined["bound_tps"],
    )


def _by_setting(frame: pd.DataFrame) -> pd.DataFrame:
    """A load in another pool, or in other prompt chunks, than most rows of its model have is a load of its own: a
    larger pool holds more requests, and how many tokens a step takes decides who waits for whom."""
    loads = frame["load"].astype(str)
    for column, as_counted, said in SETTINGS:
        if column not in frame:
            continue
        counted = frame[column].map(as_counted, na_action="ignore")
        usual = counted.groupby(frame["model"]).transform(lambda each: each.mode().iloc[0] if each.notna().any() else 0)
        other = counted.notna() & (counted != usual)
        loads = loads.where(~other, loads + counted.map(said.format, na_action="ignore"))
    return frame.assign(load=loads)


def spread(frame: pd.DataFrame) -> Table:
    """Of cells that were measured several times, each on an engine of its own: median, extremes, their distance."""
    cells = frame.groupby(["model", "label", "load", "concurrency"], sort=False)["output_tps"]
    rows: list[list[Value]] = []
    for cell, values in cells:
        *names, level = map(str, cell if isinstance(cell, tuple) else (cell,))
        low, middle, high = float(values.min()), float(values.median()), float(values.max())
        numbers = int(level), len(values), middle, low, high, 100 * (high - low) / middle
        rows.append([*names, *map(Number, numbers)])
    return Table(
        slug("throughput", REPEATS),
        "How much throughput differs from run to run",
        ["model", "method", "load", "concurrency", "runs", "median tokens/s", "lowest", "highest", "spread, %"],
        rows,
        ["Every run made its engine anew."],
    )


def table(name: str, model: str, rows: pd.DataFrame, theirs: Mapping[Key, PaperCell]) -> Table:
    """Output tokens/s and its share of the bound; ratios to BF16 as measured, by the roofline, and in the paper."""
    return Table(
        name,
        f"Throughput of {model}",
        ["method", "load", "concurrency", "output tokens/s", "share of the bound", "ratio to BF16",
         "roofline's ratio", "paper's ratio", "difference to paper", "run", "note"],
        [_row(row, theirs) for row in rows.to_dict("records")],
        ["Paper: H100 80 GB, the authors' fork of a serving engine; ratios alone can be compared.",
         "Bound: the roofline with the read and matrix-product rates measured in the same process."],
    )  # fmt: skip


def _row(row: Mapping[Hashable, Any], theirs: Mapping[Key, PaperCell]) -> list[Value]:
    """A cell that failed has its error in place of numbers."""
    run = str(row.get("run", ""))
    measured = {name: _number(row[name], run) for name in ("output_tps", "of_bound", "ratio", "bound_ratio")}
    paper = Number(theirs[place(row)].ratio) if place(row) in theirs else None
    ratio = measured["ratio"]
    gap = Number(ratio.value - paper.value, run=run) if ratio and paper else None
    note = "" if measured["output_tps"] else str(row.get("error", "failed"))
    return [row["label"], str(row["load"]), Number(row["concurrency"]), *measured.values(), paper, gap, run, note]


def place(row: Mapping[Hashable, Any]) -> Key:
    """The cell that a row is."""
    return str(row["model"]), str(row["label"]), str(row["load"]), int(row["concurrency"])


def _number(value: float | None, run: str) -> Number | None:
    return None if value is None or pd.isna(value) else Number(value, run=run)


def drawing(name: str, title: str, rows: pd.DataFrame, source: str) -> Drawing:
    """Throughput and time to first token against concurrency, and the frontier of TPS per user and per GPU."""
    gpus = rows["gpus"].fillna(1) if "gpus" in rows else 1
    rows = rows.assign(per_gpu=rows["output_tps"] / gpus).sort_values("concurrency")
    panels: list[tuple[str, str, Callable[[Axes], None]]] = [("concurrency", "output_tps", _throughput)]
    if "output_tps_request" in rows and rows["output_tps_request"].notna().any():
        panels.append(("output_tps_request", "per_gpu", _frontier))
    if "ttft_ms" in rows and rows["ttft_ms"].notna().any():
        panels.append(("concurrency", "ttft_ms", _first_token))
    with look():
        figure = Figure(figsize=(4.6 * len(panels), 4.3), layout="constrained")
        drawn = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (x, y, dress) in zip(drawn, panels, strict=True):
            for label in dict.fromkeys(map(str, rows["label"])):
                line = rows[rows["label"] == label]
                axes.plot(line[x], line[y], marker=marker(label), markersize=4, color=colour(label), linewidth=1.3)
            dress(axes)
            if x == "concurrency":
                _ticks(axes, rows[x])
            axes.margins(x=0.3)
        headline(figure, f"Throughput of {title}")
        for axes, (x, y, dress) in zip(drawn, panels, strict=True):
            lines = rows.dropna(subset=[x, y]).groupby("label", sort=False)
            single = lines["concurrency"].nunique() == 1  # a point without a curve has room on its right
            last = lines.tail(1)
            alone = last["label"].map(single)
            label_points(axes, _ends(last[~alone], x, y), left=dress is _frontier)
            label_points(axes, _ends(last[alone], x, y))
    caption = "Exact lengths, end of sequence ignored; counts from token ids; warm-up outside the clock."
    return Drawing(name, f"Throughput of {title}", caption, figure, [f"throughput/{source}.csv"])


def _ends(last: pd.DataFrame, x: str, y: str) -> list[tuple[float, float, str, str]]:
    names = map(str, last["label"])
    return [(float(a), float(b), name, colour(name)) for a, b, name in zip(last[x], last[y], names, strict=True)]


def _throughput(axes: Axes) -> None:
    axes.set(title="Job", xscale="log", xlabel="concurrency (log)", ylabel="output tokens/s", ylim=(0, None))


def _frontier(axes: Axes) -> None:
    axes.set(title="Frontier", xlabel="output tokens/s per user", ylabel="output tokens/s per GPU", ylim=(0, None))


def _first_token(axes: Axes) -> None:
    axes.set(title="Waiting", xscale="log", yscale="log", xlabel="concurrency (log)")
    axes.set_ylabel("mean time to first token (ms, log)")


def _ticks(axes: Axes, values: "pd.Series[float]") -> None:
    axes.xaxis.set_major_locator(FixedLocator(sorted(values.unique())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))

"""The methods of one load in order, beside the order that the paper's Table 1 has them in."""

from collections.abc import Iterator, Mapping
from itertools import combinations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sawbench.report.content import Drawing
from sawbench.report.naming import slug
from sawbench.report.paper_loads import Key, PaperCell
from sawbench.report.style import colour, headline, look

ENOUGH = 4
"""Methods of one load that are worth an order."""
TABLE1 = ("d8192_1024", 32)
"""The load of Table 1; Figures 4 and 7 add what it lacks."""
KEYS = (
    Line2D([], [], color="black", marker="|", linestyle="", markersize=9, label="roofline"),
    Line2D([], [], color="white", marker="D", markeredgecolor="black", linestyle="",
           label="paper, at D(8192,1024) x 32 on two H100"),
)  # fmt: skip
NOISE = 0.01
"""Ratios nearer than this are in no order."""


def drawings(frame: pd.DataFrame, theirs: Mapping[Key, PaperCell], source: str) -> Iterator[Drawing]:
    """A figure for each load and concurrency that enough methods ran; ``frame`` has ``label``, ``ratio``,
    ``bound_ratio`` (throughput over BF16's, as measured and by the roofline)."""
    measured = frame[frame["ratio"].notna()].drop_duplicates(["model", "label", "load", "concurrency"], keep="last")
    for key, rows in measured.groupby(["model", "load", "concurrency"], sort=False):
        if len(rows) >= ENOUGH:
            model, load, level = key
            yield ranking(slug("ranking", source, f"{model} {load} x{level}"), rows, table1(theirs, str(model)), source)


def table1(theirs: Mapping[Key, PaperCell], model: str) -> dict[str, float]:
    """The paper's ratios to BF16 by our row label: concurrency 32, 8k in, 1k out, two H100."""
    return {key[1]: cell.ratio for key, cell in theirs.items() if (key[0], *key[2:]) == (model, *TABLE1)}


def ranking(name: str, rows: pd.DataFrame, paper: Mapping[str, float], source: str) -> Drawing:
    """Bars by falling ratio."""
    rows = rows.sort_values("ratio", ascending=False)
    first = rows.iloc[0]
    title = f"{first['model']}, {first['load']} x {first['concurrency']}"
    with look():
        figure = Figure(figsize=(8.5, 1.5 + 0.27 * len(rows)), layout="constrained")
        _bars(figure.subplots(), rows, paper)
        figure.legend(handles=KEYS, loc="outside lower right", ncols=2, fontsize=7.5, frameon=False)
        headline(figure, f"Output tokens/s over BF16: {title}")
    caption = f"Bars: measured. {chunks(rows)}{order(dict(zip(rows['label'], rows['ratio'], strict=True)), paper)}"
    return Drawing(name, f"Order of methods: {title}", caption, figure, [f"throughput/{source}.csv"])


def chunks(rows: pd.DataFrame) -> str:
    """How many prompt tokens a step took, which a small model's order depends on."""
    sizes = set(rows["chunk"].dropna()) if "chunk" in rows else set()
    return f"Prompts in chunks of {int(sizes.pop()):,} tokens. " if len(sizes) == 1 else ""


def order(ours: Mapping[str, float], paper: Mapping[str, float]) -> str:
    """Where our order is another than the paper's."""
    shared = [label for label in paper if label in ours]
    if len(shared) < 3:
        return "Too few of the paper's methods ran here to compare its order."
    pairs = [(a, b) if paper[a] > paper[b] else (b, a) for a, b in combinations(shared, 2)]
    apart = [(a, b) for a, b in pairs if paper[a] - paper[b] > NOISE and ours[b] - ours[a] > NOISE]
    where = f"Table 1 of the paper ({TABLE1[0]} x {TABLE1[1]}, two H100)"
    if not apart:
        return f"{where} has the same order of {', '.join(shared)}, as far as {NOISE:.0%} of BF16 tells them apart."
    return f"{where} has another order: {'; '.join(f'{a} above {b} there, below it here' for a, b in apart)}."


def _bars(axes: Axes, rows: pd.DataFrame, paper: Mapping[str, float]) -> None:
    labels = [str(label) for label in rows["label"]]
    axes.barh(labels, rows["ratio"], color=[colour(label) for label in labels], height=0.7)
    for at, ratio in enumerate(rows["ratio"]):
        axes.annotate(
            f"{ratio:.2f}", (0, at), (4, 0), textcoords="offset points", color="white", va="center", fontsize=8
        )
    axes.plot(rows["bound_ratio"], labels, "|", color="black", markersize=11, markeredgewidth=1.6)
    shared = [label for label in labels if label in paper]
    axes.plot([paper[label] for label in shared], shared, "D", color="white", markeredgecolor="black", markersize=5)
    axes.axvline(1.0, color="#888888", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("ratio to BF16 of the same load")

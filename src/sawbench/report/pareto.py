"""The Pareto picture: what a stored bit buys."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

from sawbench.report.content import Drawing
from sawbench.report.records import Number, Run
from sawbench.report.style import colour, headline, label_points, look, marker

TICKS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 32)


def pareto(name: str, key: tuple[str, str], runs: Sequence[Run]) -> Drawing:
    """KL and top-1 disagreement (log) against bits per value (log): lower left is better."""
    with look():
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        divergence, changed = [run.metrics.get("kl") for run in runs], [_disagreement(run) for run in runs]
        _scatter(left, runs, divergence)
        _scatter(right, runs, changed)
        floors = [run.metrics["kl_floor"].value for run in runs if "kl_floor" in run.metrics]
        if floors and max(floors) > 0:
            _floor(left, float(np.median(floors)))
        left.set(title="Divergence of the predictions", ylabel="KL to the unquantized cache (nats, mean over tokens)")
        right.set(title="Changed predictions", ylabel="top-1 disagreement (share of tokens)")
        headline(figure, f"{key[0]}: what a stored bit buys")
        _labels(left, runs, divergence)
        _labels(right, runs, changed)
    caption = (
        f"{key[0]}; {key[1]}. Bars: 95 % bootstrap interval over prompts. Squares: rotated keys. "
        "Line: the methods that no other beats in both bits and fidelity. Dashed: the same method computed in another "
        "chunking, the noise under which no difference means anything."
    )
    return Drawing(name, f"Fidelity against stored bits: {key[0]}", caption, figure, ["metrics.csv"])


def _scatter(axes: Axes, runs: Sequence[Run], values: Sequence[Number | None]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="stored bits per K/V value (log)")
    pairs = []
    for run, value in zip(runs, values, strict=True):
        if value is None or value.value <= 0:
            continue
        bits = run.metrics["bits_per_value"].value
        pairs.append((bits, value.value))
        shape, tint = marker(run.keys["method"]), colour(run.keys["method"])
        axes.plot(bits, value.value, shape, color=tint, markersize=5.5, zorder=3)
        if value.low is not None and value.high is not None:
            axes.plot([bits, bits], [max(value.low, value.value / 1e3), value.high], color=tint, linewidth=1, alpha=0.5)
    frontier = _frontier(pairs)
    axes.plot(*zip(*frontier, strict=True), color="#bbbbbb", linewidth=1, zorder=1)
    least, most = min(x for x, _ in pairs), max(x for x, _ in pairs)
    axes.set_xlim(least / 1.15, most * 1.55)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if tick >= least / 1.15]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))


def _labels(axes: Axes, runs: Sequence[Run], values: Sequence[Number | None]) -> None:
    label_points(
        axes,
        [
            (run.metrics["bits_per_value"].value, value.value, run.label, colour(run.keys["method"]))
            for run, value in zip(runs, values, strict=True)
            if value is not None and value.value > 0
        ],
    )


def _frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that have less of y than every point with as few x."""
    kept: list[tuple[float, float]] = []
    for point in sorted(points):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def _floor(axes: Axes, value: float) -> None:
    axes.axhline(value, color="#999999", linestyle="--", linewidth=0.8)
    axes.annotate(
        "rounding floor", (0.01, value), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
        fontsize=7, color="#777777",
    )  # fmt: skip


def _disagreement(run: Run) -> Number | None:
    agreed = run.metrics.get("top1")
    if agreed is None:
        return None
    low, high = (None if bound is None else 1 - bound for bound in (agreed.high, agreed.low))
    return Number(1 - agreed.value, low, high, agreed.run)

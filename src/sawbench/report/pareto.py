"""The Pareto picture: what a stored bit buys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

from sawbench.report.content import Drawing
from sawbench.report.records import Number, Run
from sawbench.report.style import colour, headline, label_points, look, marker

ASIDE = 0.012  # of the bits, between neighbours
WIDEST = 0.05  # of the bits, from the first to the last of many neighbours
CROWD = 6  # methods of the fewest bits, above which their names stand on the left, where nothing else is
TICKS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 32)


@dataclass(frozen=True)
class Point:
    """A method in one panel; ``x`` is its bits, moved aside a little where others store as many."""

    run: Run
    bits: float
    x: float
    y: Number

    @property
    def tint(self) -> str:
        return colour(self.run.keys["method"])


def pareto(name: str, key: tuple[str, str], runs: Sequence[Run]) -> Drawing:
    """KL and top-1 disagreement (log) against bits per value (log): lower left is better."""
    divergence, changed = points(runs, lambda run: run.metrics.get("kl")), points(runs, disagreement)
    with look():
        figure = Figure(figsize=(10.5, 5.2 + 0.14 * max(0, len(runs) - 12)), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        _scatter(left, divergence)
        _scatter(right, changed)
        crowded = len(_least(divergence)) > CROWD
        _bits_axis(left, [run.metrics["bits_per_value"].value for run in runs], room=2.4 if crowded else 1.15)
        _floors(left, divergence)
        left.set(title="Divergence of the predictions", ylabel="KL to the unquantized cache (nats, mean over tokens)")
        right.set(title="Changed predictions", ylabel="top-1 disagreement (share of tokens)")
        headline(figure, f"{key[0]}: what a stored bit buys")
        for axes, shown in ((left, divergence), (right, changed)):
            beside = _least(shown) if crowded else []
            _label(axes, beside, left=True)
            _label(axes, [point for point in shown if point not in beside])
            _absent(axes, [run.label for run in runs if run not in [point.run for point in shown]])
    return Drawing(name, f"Fidelity against stored bits: {key[0]}", _caption(key), figure, ["metrics.csv"])


def points(runs: Sequence[Run], value: Callable[[Run], Number | None]) -> list[Point]:
    """What a logarithmic axis can show. Methods that store equally many bits stand side by side, best to the left."""
    found = [(run, y, run.metrics["bits_per_value"].value) for run in runs if (y := value(run)) and y.value > 0]
    ordered = sorted(found, key=lambda item: (round(item[2], 1), item[1].value))
    placed = []
    for _, group in groupby(ordered, key=lambda item: round(item[2], 1)):
        members = list(group)
        last = len(members) - 1
        step = min(ASIDE, WIDEST / max(last, 1))
        for rank, (run, y, bits) in enumerate(members):
            placed.append(Point(run, bits, bits * (1 + step * (rank - last / 2)), y))
    return placed


def _least(shown: Sequence[Point]) -> list[Point]:
    """The points of about the fewest bits."""
    fewest = min((point.bits for point in shown), default=0.0)
    return [point for point in shown if point.bits < fewest * 1.05]


def _label(axes: Axes, shown: Sequence[Point], left: bool = False) -> None:
    label_points(axes, [(point.x, point.y.value, point.run.label, point.tint) for point in shown], left=left)


def disagreement(run: Run) -> Number | None:
    """Share of tokens whose most likely prediction changed."""
    agreed = run.metrics.get("top1")
    if agreed is None:
        return None
    low, high = (None if bound is None else 1 - bound for bound in (agreed.high, agreed.low))
    return Number(1 - agreed.value, low, high, agreed.run)


def _scatter(axes: Axes, shown: Sequence[Point]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="stored bits per K/V value (log)")
    for point in shown:
        y = point.y
        axes.plot(point.x, y.value, marker(point.run.keys["method"]), color=point.tint, markersize=5.5, zorder=3)
        if y.low is not None and y.high is not None:
            axes.plot([point.x] * 2, [max(y.low, y.value / 1e3), y.high], color=point.tint, linewidth=1, alpha=0.6)
    if shown:  # an interval that reaches down to nothing must not take the picture
        axes.set_ylim(bottom=min(point.y.value for point in shown) / 2.5)
    best = _frontier([(point.bits, point.y.value, point.x) for point in shown])
    axes.plot([x for _, _, x in best], [y for _, y, _ in best], color="#bbbbbb", linewidth=1, zorder=1)


def _bits_axis(axes: Axes, bits: Sequence[float], room: float) -> None:
    """``room``: how far below the fewest bits the axis begins, as a factor."""
    axes.set_xlim(min(bits) / room, max(bits) * 1.55)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if tick >= min(bits) / 1.15]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))


def _absent(axes: Axes, labels: Sequence[str]) -> None:
    """Names of the methods whose value is zero or was not measured: a logarithm has no place for them."""
    if labels:
        text = "below the axis: " + ", ".join(labels)
        axes.text(0.98, 0.015, text, transform=axes.transAxes, ha="right", fontsize=7, color="#555555")


def _caption(key: tuple[str, str]) -> str:
    return (
        f"{key[0]}; {key[1]}. Bars: 95 % bootstrap interval over prompts. Squares: rotated keys. Points of equally "
        "many bits stand side by side. Line: the methods that no other beats in both bits and fidelity. Grey dash: "
        "each method's rounding floor, its KL to itself computed in other chunks."
    )


def _frontier(found: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Tuples (bits, value, ...) that have less of value than every one with as few bits."""
    kept: list[tuple[float, ...]] = []
    for point in sorted(found):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def _floors(axes: Axes, shown: Sequence[Point]) -> None:
    for point in shown:
        if (floor := point.run.metrics.get("kl_floor")) and floor.value > 0:
            axes.plot(point.x, floor.value, "_", color="#777777", markersize=8, zorder=2)

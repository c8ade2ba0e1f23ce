"""How every figure looks: colours that colour-blind readers tell apart, labels on the marks, unchanging files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

HALO = withStroke(linewidth=2, foreground="white")
"""Round a label, so that lines that it crosses do not strike it out."""

Label = tuple[float, float, str, str]
"""x, y, text, colour."""

RC = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "svg.hashsalt": "sawbench",
    "path.simplify": True,
}

# Okabe and Ito (2008); a family keeps its colour in every figure.
FAMILIES = {
    "bf16": "#000000",
    "int4": "#D55E00",
    "bdr": "#0072B2",
    "kbias": "#009E73",
    "kmeans": "#CC79A7",
    "hessian": "#B8860B",
    "centre": "#56B4E9",
    "int8": "#777777",
    "k8v4": "#8C564B",
}
OTHERS = ("#5F4B8B", "#A0522D", "#2F4F4F", "#6B8E23", "#8B0000")


def colour(method: str) -> str:
    """The colour of a method's family, from its name up to the first underscore or space."""
    family = method.replace(" ", "_").split("_")[0]
    return FAMILIES.get(family, OTHERS[sum(map(ord, family)) % len(OTHERS)])


def marker(method: str) -> str:
    """Square where K (or K and V) is rotated, circle where it is not: shape says it where colour cannot."""
    return "s" if "bdr" in method or method.startswith("hessian") else "o"


@contextmanager
def look() -> Iterator[None]:
    """The style, for figures made inside."""
    with mpl.rc_context(RC):
        yield


def headline(figure: Figure, text: str) -> None:
    """The figure's title, above its panels on the left."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def settle(figure: Figure | None) -> None:
    """Lay the figure out once and for all: constrained layout would measure every text again for each file."""
    if figure is not None and figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png and ``stem``.svg, without date or version: the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))  # names hold dots
    with look():
        settle(figure)
        figure.savefig(png, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions nearest to ``wanted`` (least squares) in the same order, at least ``gap`` apart."""
    order = np.argsort(wanted, kind="stable")
    blocks: list[tuple[float, int]] = []  # mean of (wanted - rank * gap), size: pooled while they descend
    for rank, index in enumerate(order):
        mean, size = wanted[index] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        blocks.append((mean, size))
    flat = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks]) + gap * np.arange(len(order))
    placed = np.empty(len(order))
    placed[order] = flat
    return [float(value) for value in placed]


def within(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """``wanted`` moved up and down as far as leaves room, ``gap`` each, for all that stand beneath and above between
    ``low`` and ``high``; where there is no room for all, beneath ``low``."""
    placed = np.array(wanted, dtype=float)
    order, ranks = np.argsort(placed, kind="stable"), np.arange(len(placed))
    placed[order] = np.maximum(placed[order], low + gap * ranks)
    placed[order] = np.minimum(placed[order], high - gap * ranks[::-1])
    return [float(value) for value in placed]


def label_points(
    axes: Axes,
    points: Sequence[tuple[float, float, str, str]],
    *,
    gap: float = 11.5,
    size: float = 7.5,
    left: bool = False,
) -> None:
    """Write text beside each point, right (or left) of its column of points, with a thread to it.

    Call it last: it reads the axes' final limits. ``gap`` in points.
    """
    if not points:
        return
    settle(axes.get_figure(root=True))
    scale = axes.figure.dpi / 72
    places = axes.transData.transform([(x, y) for x, y, _, _ in points]) / scale
    for column in _columns([float(x) for x, _ in places], 24):
        edge = min(places[i][0] for i in column) - 14 if left else max(places[i][0] for i in column) + 14
        low, high = axes.bbox.y0 / scale + gap / 2, axes.bbox.y1 / scale - gap / 2  # off the axis, below the title
        heights = spread(within([float(places[i][1]) for i in column], low, high, gap), gap)
        for index, height in zip(column, heights, strict=True):
            x, y, text, tint = points[index]
            thread = {"arrowstyle": "-", "color": tint, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
            axes.annotate(
                text, (x, y), (edge - places[index][0], height - places[index][1]), textcoords="offset points",
                color=tint, fontsize=size, ha="right" if left else "left", va="center", arrowprops=thread,
                annotation_clip=False, path_effects=[HALO],
            )  # fmt: skip


def _columns(xs: Sequence[float], width: float) -> list[list[int]]:
    """Indices grouped so that a gap of more than ``width`` separates the groups."""
    groups: list[list[int]] = []
    for index in np.argsort(xs, kind="stable"):
        if groups and xs[index] - xs[groups[-1][-1]] <= width:
            groups[-1].append(int(index))
        else:
            groups.append([int(index)])
    return groups

"""The outlier profile of a model's keys by channel, before and after rotation: why rotation works, and where it cannot.

Any CSV of the results folder whose name ends in ``key_profile`` serves. Columns: model, layer, head, channel, stage
(``before``, ``after``, or any other name: one panel each, in the order of the file), absmax and rms of post-RoPE K over
tokens, in the units of K; where there is a column method too, a panel for what each of them makes of the same keys.
"""

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from sawbench.report.content import Drawing
from sawbench.report.naming import slug
from sawbench.report.records import Study
from sawbench.report.style import headline, label_points, look

STAGES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")


def drawings(study: Study) -> Iterator[Drawing]:
    """One figure a model."""
    frames = {name: frame for name, frame in study.tables.items() if name.endswith("key_profile")}
    for name, frame in frames.items():
        for model, rows in frame.groupby("model", sort=True):
            yield profile(f"keys-{slug(str(model))}", str(model), staged(rows), f"{name}.csv")


def staged(rows: pd.DataFrame) -> pd.DataFrame:
    """The keys as they come, once, and then each method's under its name: every method met the same ones."""
    if "method" not in rows:
        return rows
    labels = (rows["method"] + " " + rows["options"].fillna("")).str.strip() if "options" in rows else rows["method"]
    before = rows[(rows["stage"] == "before") & (labels == labels.iloc[0])]
    after = rows[rows["stage"] != "before"]
    return pd.concat([before, after.assign(stage=after["stage"] + " " + labels[after.index])])


def profile(name: str, model: str, rows: pd.DataFrame, source: str) -> Drawing:
    """Above: largest |K| by layer and channel, one panel a stage. Below: the head with the largest channel of all."""
    stages = list(dict.fromkeys(rows["stage"]))
    layer, head = worst_head(rows[rows["stage"] == stages[0]])
    with look():
        figure = Figure(figsize=(max(9.0, 4.2 * len(stages)), 6.2), layout="constrained")
        grid = figure.add_gridspec(2, len(stages), height_ratios=(1.25, 1))
        scale = LogNorm(max(float(rows["absmax"].quantile(0.02)), 1e-3), float(rows["absmax"].max()))
        maps = [figure.add_subplot(grid[0, at]) for at in range(len(stages))]
        for axes, stage in zip(maps, stages, strict=True):
            image = _map(axes, rows[rows["stage"] == stage], stage, scale)
        figure.colorbar(image, ax=maps, label="largest |K| over heads and tokens", pad=0.01)
        below = figure.add_subplot(grid[1, :])
        ends = _lines(below, rows[(rows["layer"] == layer) & (rows["head"] == head)], stages)
        headline(figure, f"{model}: one channel sets the scale of all")
        label_points(below, ends)
    return Drawing(
        name, f"Key outliers by channel: {model}", _caption(model, rows, stages, layer, head), figure, [source]
    )


def worst_head(rows: pd.DataFrame) -> tuple[int, int]:
    """Layer and head of the largest channel of all: whose step is the coarsest."""
    row = rows.nlargest(1, "absmax").iloc[0]
    return int(row["layer"]), int(row["head"])


def peak(rows: pd.DataFrame, layer: int, head: int) -> float:
    """Largest |K| of a head: what one scale for the head must reach."""
    return float(rows[(rows["layer"] == layer) & (rows["head"] == head)]["absmax"].max())


def _map(axes: Axes, rows: pd.DataFrame, stage: str, scale: LogNorm) -> AxesImage:
    grid = rows.pivot_table(index="layer", columns="channel", values="absmax", aggfunc="max")
    axes.set(title=f"{stage} rotation" if stage in ("before", "after") else stage, xlabel="channel", ylabel="layer")
    axes.grid(False)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return axes.imshow(grid, aspect="auto", cmap="cividis", norm=scale, interpolation="nearest")


def _lines(axes: Axes, rows: pd.DataFrame, stages: list[str]) -> list[tuple[float, float, str, str]]:
    """The curves, and the labels of their ends."""
    ends = []
    for stage, tint in zip(stages, STAGES * len(stages), strict=False):
        line = rows[rows["stage"] == stage].sort_values("channel")
        axes.step(line["channel"], line["absmax"], where="mid", color=tint, linewidth=1.2)
        ends.append((float(line["channel"].iloc[-1]), float(line["absmax"].iloc[-1]), stage, tint))
    layer, head = rows["layer"].iloc[0], rows["head"].iloc[0]
    axes.set(yscale="log", xlabel="channel", ylabel="largest |K| over tokens (log)")
    axes.set_title(f"layer {layer}, KV head {head}: the head with the largest channel")
    axes.set_xlim(-0.5, 1.09 * float(rows["channel"].max()))
    return ends


def _caption(model: str, rows: pd.DataFrame, stages: list[str], layer: int, head: int) -> str:
    peaks = ", ".join(f"{stage} {peak(rows[rows['stage'] == stage], layer, head):.1f}" for stage in stages)
    return (
        f"{model}: largest |K| after RoPE by channel. Layer {layer}, KV head {head} reaches: {peaks}. With one scale "
        "for a head, that alone decides the step of all its channels."
    )

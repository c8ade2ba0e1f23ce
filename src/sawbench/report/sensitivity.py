"""Which heads of a model suffer from few bits, and what the mixed method gives them.

Any CSV of the results folder whose name ends in ``sensitivity`` serves. Columns: model, layer, head, side (key or
value), error (relative error of the attention output when this head's side alone is quantized), bits (assigned to it).
"""

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sawbench.report.content import Drawing
from sawbench.report.naming import slug
from sawbench.report.records import Study
from sawbench.report.style import headline, look

NEEDED = {"model", "layer", "head", "side", "error"}


def drawings(study: Study) -> Iterator[Drawing]:
    """One figure a model."""
    for name, frame in study.tables.items():
        if name.endswith("sensitivity") and set(frame.columns) >= NEEDED:
            for model, rows in frame.groupby("model", sort=True):
                yield heat(f"sensitivity-{slug(str(model))}", str(model), rows, f"{name}.csv")


def heat(name: str, model: str, rows: pd.DataFrame, source: str) -> Drawing:
    """Layers across, KV heads down, a panel for K and one for V; the bits that a head was given stand in its field
    where they are more than the fewest."""
    sides = [side for side in ("key", "value") if side in set(rows["side"])]
    fewest = rows["bits"].min() if "bits" in rows else None
    with look():
        heads = rows["head"].nunique()
        figure = Figure(figsize=(10, 1.2 + len(sides) * (0.8 + 0.28 * heads)), layout="constrained")
        panels = figure.subplots(len(sides), 1, sharex=True, squeeze=False)[:, 0]
        for axes, side in zip(panels, sides, strict=True):
            part = rows[rows["side"] == side]
            grid = part.pivot_table(index="head", columns="layer", values="error")
            image = axes.imshow(grid, aspect="auto", cmap="cividis", vmin=0, vmax=rows["error"].max())
            axes.set(title={"key": "K", "value": "V"}[side], ylabel="KV head")
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(False)
            kept = part[part["bits"] > fewest] if fewest is not None else part.iloc[:0]
            for layer, head, bits, error in kept.reindex(columns=["layer", "head", "bits", "error"]).to_numpy(float):
                ink = "black" if error > 0.6 * rows["error"].max() else "white"
                axes.text(layer, head, f"{bits:g}", ha="center", va="center", fontsize=7, color=ink)
        panels[-1].set_xlabel("layer")
        figure.colorbar(image, ax=list(panels), label="relative output error", pad=0.01)
        headline(figure, f"{model}: what quantizing one head alone does")
    caption = (
        f"{model}. Figures: bits kept by the heads that get more than {'the fewest' if fewest is None else fewest}."
    )
    return Drawing(name, f"Sensitivity by head: {model}", caption, figure, [source])

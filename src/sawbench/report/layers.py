"""Where the error arises: layer by layer."""

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from sawbench.report.content import Drawing
from sawbench.report.style import headline, look

SIDES = {"key": "K", "value": "V", "output": "attention output"}
DECADES = 1e3  # shown below the largest error: 16-bit rows would otherwise take all the contrast


def by_layer(name: str, key: tuple[str, str], layers: pd.DataFrame) -> Drawing:
    """Relative error of K, V and attention output: methods (``label``) down, layers across, mean over KV heads."""
    grids = {side: layers.pivot_table(index="label", columns="layer", values=side, aggfunc="mean") for side in SIDES}
    order = grids["output"].mean(axis=1).sort_values(ascending=False).index
    positive = np.concatenate([grid.to_numpy().ravel() for grid in grids.values()])
    positive = positive[positive > 0]
    with look():
        figure = Figure(figsize=(11, 1.9 + 0.26 * len(order)), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        top = float(positive.max()) if positive.size else 1.0
        scale = LogNorm(max(float(positive.min(initial=top)), top / DECADES), top)
        for axes, (side, title) in zip(panels, SIDES.items(), strict=True):
            grid = grids[side].reindex(order)
            seen = grid.where(grid > 0)
            image = axes.imshow(seen, aspect="auto", cmap="cividis", norm=scale, interpolation="nearest")
            axes.set(title=title, xlabel="layer", yticks=range(len(order)), yticklabels=order)
            axes.grid(False)
        figure.colorbar(
            image, ax=panels, label="relative error (mean over KV heads)", pad=0.01, aspect=15, extend="min"
        )
        headline(figure, f"{key[0]}: where the error arises")
    caption = f"{key[0]}; {key[1]}. |x̂ - x| / |x| by layer, averaged over KV heads; blank: exactly zero."
    return Drawing(name, f"Error by layer: {key[0]}", caption, figure, ["fidelity_layers.csv"])

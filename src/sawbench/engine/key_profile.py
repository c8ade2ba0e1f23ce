"""Keys channel by channel, as they come and as they are quantized: where the outliers are, and what a method makes of
them."""

import torch
from torch import Tensor

from sawbench.cache.hf import QuantizedLayer
from sawbench.core.replay import KeyChannel

STAGES = ("before", "after")


class KeyMeter:
    """Called by a cache for every attention; keeps the largest magnitude and the sum of squares of each channel."""

    def __init__(self) -> None:
        self.largest: dict[tuple[int, str], Tensor] = {}
        self.squares: dict[tuple[int, str], Tensor] = {}
        self.tokens: dict[tuple[int, str], int] = {}

    def __call__(self, layer: QuantizedLayer, key: Tensor, *others: object) -> None:
        """``key`` [B, T, H, D]: exact, after RoPE. Its second stage is what meets the quantizer: minus the offset,
        transformed."""
        wide = key.to(torch.promote_types(key.dtype, torch.float32))
        side, positions = layer.codec.key, layer.cache.row_positions(key.shape[1], key)
        for stage, x in zip(STAGES, (wide, side.residual(wide, positions)), strict=True):
            flat = x.flatten(0, 1)
            at = (layer.index, stage)
            largest, squares = flat.abs().amax(0), flat.double().square().sum(0)
            self.largest[at] = torch.maximum(self.largest[at], largest) if at in self.largest else largest
            self.squares[at] = self.squares.get(at, 0) + squares
            self.tokens[at] = self.tokens.get(at, 0) + len(flat)

    def channels(self) -> list[KeyChannel]:
        """One row a layer, stage, head and channel."""
        rows = []
        for (layer, stage), largest in sorted(
            self.largest.items(), key=lambda item: (item[0][0], STAGES.index(item[0][1]))
        ):
            rms = (self.squares[layer, stage] / self.tokens[layer, stage]).sqrt()
            for head, pairs in enumerate(zip(largest.tolist(), rms.tolist(), strict=True)):
                rows += [KeyChannel(layer, head, at, stage, a, b) for at, (a, b) in enumerate(zip(*pairs, strict=True))]
        return rows

"""Relative errors of K, V and attention output by layer and KV head, taken while a quantized forward runs."""

import torch
from torch import Tensor

from sawbench.attention.naive import attend_exact
from sawbench.cache.hf import QuantizedLayer
from sawbench.core.replay import LayerError


class ErrorMeter:
    """Called by a cache for every attention; sums squared errors and squared norms by head, in float64."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def __call__(
        self,
        layer: QuantizedLayer,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        mask: Tensor | None,
        scaling: float,
        output: Tensor,
    ) -> None:
        """``key``, ``value`` [B, T, H, D]: the whole sequence, exact; ``output`` [B, T, Hq, D] came from the cache."""
        wide = torch.promote_types(key.dtype, torch.float32)
        positions = layer.cache.row_positions(key.shape[1], key)
        exact_output = attend_exact(query, key, value, mask, scaling)
        by_head = (2, (key.shape[2], -1))
        pairs = [
            (layer.codec.key.read(layer.key, positions, wide), key),
            (layer.codec.value.read(layer.value, positions, wide), value),
            (output.unflatten(*by_head), exact_output.unflatten(*by_head)),
        ]
        sums = torch.stack([_squares(seen, exact) for seen, exact in pairs])
        self.sums[layer.index] = self.sums.get(layer.index, 0) + sums

    def errors(self) -> list[LayerError]:
        """One row a layer and KV head; 0 / 0 is 0."""
        tiny = torch.finfo(torch.float64).tiny
        rows = []
        for layer, sums in sorted(self.sums.items()):
            ratios = (sums[:, 0] / sums[:, 1].clamp_min(tiny)).sqrt().T.tolist()
            rows += [LayerError(layer, head, *ratio) for head, ratio in enumerate(ratios)]
        return rows


def _squares(seen: Tensor, exact: Tensor) -> Tensor:
    """Sums over all but dimension 2 (KV heads): squared error and squared norm, float64 [2, H]."""
    others = [d for d in range(exact.ndim) if d != 2]
    error, norm = (seen.double() - exact.double()).square(), exact.double().square()
    return torch.stack((error.sum(others), norm.sum(others)))

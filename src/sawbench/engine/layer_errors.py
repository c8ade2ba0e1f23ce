"""Relative errors of K, V and attention output by layer and KV head, taken while a quantized forward runs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sawbench.attention.naive import attend_exact
from sawbench.core.replay import LayerError
from sawbench.methods.method import BoundLayer


class ErrorMeter:
    """Called by a cache for every attention; sums squared errors and squared norms by head, in float64."""

    def __init__(self, layers: Sequence[BoundLayer]) -> None:
        self.layers = layers
        self.sums: dict[int, Tensor] = {}

    def __call__(
        self, layer: int, key: Tensor, value: Tensor, query: Tensor, mask: Tensor | None, scaling: float, output: Tensor
    ) -> None:
        """``key`` and ``value`` [B, T, H, D] are the whole sequence's, exact; ``output`` [B, T, Hq, D] read the cache."""
        positions = torch.arange(key.shape[1], device=key.device).expand(key.shape[:2])
        wide = torch.promote_types(key.dtype, torch.float32)
        exact_output = attend_exact(query, key, value, mask, scaling)
        pairs = [(_decoded(side, x, positions, wide), x) for side, x in zip(self._sides(layer), (key, value), strict=True)]
        group = output.unflatten(2, (key.shape[2], -1)), exact_output.unflatten(2, (key.shape[2], -1))
        sums = torch.stack([torch.stack(_squares(a, b)) for a, b in [*pairs, group]])
        self.sums[layer] = self.sums.get(layer, 0) + sums

    def _sides(self, layer: int):  # type: ignore[no-untyped-def]
        return self.layers[layer].key, self.layers[layer].value

    def errors(self) -> list[LayerError]:
        """One row a layer and KV head; 0 / 0 is 0."""
        rows = []
        for layer, sums in sorted(self.sums.items()):
            ratio = (sums[:, 0] / sums[:, 1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt().T.tolist()
            rows += [LayerError(layer, head, *errors) for head, errors in enumerate(ratio)]
        return rows

"""The specification of dequantize_pages: stored bytes back to keys or values in the model's own space."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sawbench_kernels.codec import decode
from sawbench_kernels.key_bias import rotated_bias
from sawbench_kernels.pages import gather
from sawbench_kernels.quantize_store.reference import centroids, turn
from sawbench_kernels.quantize_store.spec import StoreSpec


def dequantize_pages(
    planes: Mapping[str, Tensor],
    slots: Tensor,
    spec: StoreSpec,
    side: str,
    positions: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``x_hat = stored rotation^T + codebook[index] + R_j bias``, ``dtype`` [T, H_kv, D], of the tokens at ``slots``.

    All arithmetic runs in ``dtype``; ``positions`` int64 [T] are needed for keys where the spec has a key bias.
    """
    part = spec.key if side == "key" else spec.value
    bits = spec.layout.key_bits if side == "key" else spec.layout.value_bits
    tokens = gather(planes, slots)
    x = turn(decode(tokens, side, bits, spec.layout.head_dim, dtype), part.rotation, inverse=True)
    if part.codebook is not None:
        x = x + centroids(part.codebook.to(dtype), tokens.get(f"{side}.index"), len(slots))
    if side == "key" and spec.key_bias is not None:
        if positions is None:
            raise ValueError("keys with a split-off bias need their positions")
        x = x + rotated_bias(spec.key_bias.bias.to(slots.device, dtype), spec.key_bias.rotary, positions)
    return x

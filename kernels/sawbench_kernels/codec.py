"""Values of one side (keys or values) of a cache to the planes of a page and back, by the naive mathematics."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sawbench_kernels.packing import pack, unpack
from sawbench_kernels.quantize_store.naive import Affine, dequantize, quantize


def encode(x: Tensor, side: str, bits: int) -> dict[str, Tensor]:
    """``x`` [T, H, D] as ``{side}.codes`` and, below 16 bits, ``{side}.pair`` fp16 [T, H, 2] = (scale, min)."""
    if bits == 16:
        return {f"{side}.codes": x}
    affine = quantize(x, bits, x.shape[-1], "fp16")
    return {f"{side}.codes": pack(affine.codes, bits), f"{side}.pair": torch.cat((affine.scale, affine.zero), -1)}


def decode(encoded: Mapping[str, Tensor], side: str, bits: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Inverse of :func:`encode` up to rounding: values [..., D] in ``dtype``."""
    codes = encoded[f"{side}.codes"]
    if bits == 16:
        return codes.to(dtype)
    scale, zero = encoded[f"{side}.pair"].split(1, -1)
    return dequantize(Affine(unpack(codes, bits, dim), scale, zero), "fp16", dtype)

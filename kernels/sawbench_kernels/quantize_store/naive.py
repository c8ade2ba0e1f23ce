"""Asymmetric (affine) integer quantization of one vector a token and head: the mathematics of INT4 and INT8 caches.

``scale = (max - min) / (2**bits - 1)`` over a group, ``code = floor((x - min) / scale + 1/2)`` clipped to the levels
(paper, section on INT4; its code rounds half up). Three ways to store the pair:

* ``fp16``: (scale, min) in fp16; codes are computed from the rounded pair, so the error is at most half a step plus
  half an ulp of the stored min. Not (scale, zero): zero = -min / scale overflows fp16 on narrow ranges. Evaluated as
  ``floor((x - (min - scale / 2)) * (1 / scale))``: two roundings a value and no division, which the kernel repeats
  bit by bit.
* ``fp32``: (scale, zero) in fp32 with the zero-point rounded, as the paper writes it.
* ``fp32_unrounded``: the same with the zero-point left unrounded, as the authors' code has it.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Storage = Literal["fp16", "fp32", "fp32_unrounded"]
RANGE_FLOOR = 1e-8  # the authors' code never divides by a smaller range
FP16_MAX = 65504.0
FP16_TINY = 2.0**-24  # smallest positive fp16


class Affine(NamedTuple):
    """Codes uint8 [..., D] and the stored pair, each [..., D / group] in the storage dtype."""

    codes: Tensor
    scale: Tensor
    zero: Tensor


def quantize(x: Tensor, bits: int, group: int, storage: Storage) -> Affine:
    """Quantize ``x`` [..., D] in groups of ``group`` neighbouring dimensions.

    Arithmetic runs in float64 for float64 input and in float32 otherwise.

    Raises:
        OverflowError: ``storage`` is fp16 and a minimum lies beyond +-65504, or the range cannot be stored.
    """
    work = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, group))
    low, high = work.amin(-1), work.amax(-1)
    levels = (1 << bits) - 1
    if storage == "fp16":
        scale, zero, overflow = fp16_pair(low, high, levels)
        if bool(overflow.any()):
            raise OverflowError("a cache value lies beyond 65504, too large for an fp16 (scale, min) pair: use fp32")
        codes = encode_fp16(work, scale, zero, levels)
    else:
        scale, zero = _fp32_pair(low, high, levels, storage == "fp32")
        steps = work / scale[..., None].to(work.dtype) + zero[..., None].to(work.dtype)
        codes = torch.floor(steps + 0.5).clamp_(0, levels).to(torch.uint8)
    return Affine(codes.flatten(-2), scale, zero)


def dequantize(affine: Affine, storage: Storage, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] in ``dtype``; the arithmetic is that of ``dtype`` or float32, whichever is wider."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale, zero = affine.scale.to(wide)[..., None], affine.zero.to(wide)[..., None]
    codes = affine.codes.to(wide).unflatten(-1, (affine.scale.shape[-1], -1))
    values = codes * scale + zero if storage == "fp16" else (codes - zero) * scale
    return values.flatten(-2).to(dtype)


def fp16_pair(low: Tensor, high: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """(scale, min) in fp16 of groups whose extrema are ``low`` and ``high``, saturated, and where they had to be."""
    step = (high - low) * (1.0 / levels)
    overflow = (low.abs() > FP16_MAX) | (step > FP16_MAX)
    scale = torch.where(high == low, 1.0, step.clamp(FP16_TINY, FP16_MAX)).to(torch.float16)
    return scale, low.clamp(-FP16_MAX, FP16_MAX).to(torch.float16), overflow


def encode_fp16(x: Tensor, scale: Tensor, zero: Tensor, levels: int) -> Tensor:
    """Codes uint8 of groups ``x`` [..., groups, group] under a stored pair [..., groups]."""
    scale, zero = (p[..., None].to(x.dtype) for p in (scale, zero))
    return ((x - (zero - 0.5 * scale)) * (1.0 / scale)).clamp_(0, levels).to(torch.uint8)


def _fp32_pair(low: Tensor, high: Tensor, levels: int, rounded: bool) -> tuple[Tensor, Tensor]:
    scale = (high - low).clamp_min(RANGE_FLOOR) / levels
    zero = -low / scale
    return scale.to(torch.float32), (torch.floor(zero + 0.5) if rounded else zero).to(torch.float32)

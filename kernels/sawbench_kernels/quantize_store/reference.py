"""The specification of quantize_store over pages: naive arithmetic for every token, then a scatter."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sawbench_kernels.hadamard.naive import hadamard
from sawbench_kernels.key_bias import rotated_bias
from sawbench_kernels.packing import pack
from sawbench_kernels.pages import store
from sawbench_kernels.quantize_store.naive import encode_fp16, fp16_pair
from sawbench_kernels.quantize_store.spec import Rotation, SideSpec, StoreSpec


def quantize_store(
    key: Tensor,
    value: Tensor,
    planes: Mapping[str, Tensor],
    slots: Tensor,
    spec: StoreSpec,
    positions: Tensor | None = None,
    key_index: Tensor | None = None,
    value_index: Tensor | None = None,
) -> bool:
    """Write ``key``, ``value`` [T, H_kv, D] into ``planes``; returns whether any fp16 pair had to be saturated.

    Arithmetic runs in float64 for float64 input and in float32 otherwise.

    Args:
        slots: int64 [T]; -1 is skipped.
        positions: int64 [T], where ``spec.key_bias`` is given.
        key_index, value_index: int64 [T, books], nearest centroids, where the layout stores them.
    """
    bias = None
    if spec.key_bias is not None:
        wide = torch.promote_types(key.dtype, torch.float32)
        bias = rotated_bias(spec.key_bias.bias.to(key.device, wide), spec.key_bias.rotary, _given(positions))
    saturated = False
    for side, x, part, index in (("key", key, spec.key, key_index), ("value", value, spec.value, value_index)):
        turned = transform(x, part, index, bias if side == "key" else None)
        encoded, overflow = _encode(turned, side, getattr(spec.layout, f"{side}_bits"), planes)
        if f"{side}.index" in planes:
            encoded[f"{side}.index"] = _given(index)
        store(planes, slots, encoded)
        saturated |= bool(overflow[slots >= 0].any())
    return saturated


def transform(x: Tensor, spec: SideSpec, index: Tensor | None, bias: Tensor | None) -> Tensor:
    """``(x - codebook[index] - bias) rotation``, at least float32, for ``x`` [T, H, D]."""
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    if spec.codebook is not None:
        y = y - centroids(spec.codebook.to(y.dtype), index, len(x))
    if bias is not None:
        y = y - bias
    return turn(y, spec.rotation)


def turn(x: Tensor, rotation: Rotation, inverse: bool = False) -> Tensor:
    """``x`` [T, H, D] times the rotation, or its transpose."""
    if isinstance(rotation, int):
        return hadamard(x, rotation) if rotation > 1 else x
    matrix = (rotation.mT if inverse else rotation).to(x.dtype)
    return torch.einsum("thd,hde->the", x, matrix.expand(x.shape[1], -1, -1))


def centroids(codebook: Tensor, index: Tensor | None, tokens: int) -> Tensor:
    """Centroids [T, H, D] of ``codebook`` [H, C, D] at ``index`` [T, books] (None: the only one)."""
    heads = len(codebook)
    if index is None:
        return codebook[:, 0].expand(tokens, -1, -1)
    by_head = index.to(torch.int64).repeat_interleave(heads // index.shape[1], 1)
    return codebook[torch.arange(heads, device=codebook.device), by_head]


def _encode(x: Tensor, side: str, bits: int, planes: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    if bits == 16:
        return {f"{side}.codes": x.to(planes[f"{side}.codes"].dtype)}, torch.zeros(
            len(x), dtype=torch.bool, device=x.device
        )
    levels = (1 << bits) - 1
    scale, zero, overflow = fp16_pair(x.amin(-1), x.amax(-1), levels)
    codes = encode_fp16(x[..., None, :], scale[..., None], zero[..., None], levels).squeeze(-2)
    return {f"{side}.codes": pack(codes, bits), f"{side}.pair": torch.stack((scale, zero), -1)}, overflow.any(-1)


def _given(x: Tensor | None) -> Tensor:
    if x is None:
        raise ValueError("the key-bias split needs positions, and a layout with centroids their indices")
    return x

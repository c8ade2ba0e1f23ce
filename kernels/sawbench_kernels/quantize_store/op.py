"""Checked entry to the quantize_store kernel; :mod:`.reference` is the specification."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sawbench_kernels.key_bias import cos_sin_table
from sawbench_kernels.launch import check_rows, check_sides, words
from sawbench_kernels.paged_decode.naive import KeyBias
from sawbench_kernels.quantize_store.kernel import store_kernel
from sawbench_kernels.quantize_store.spec import SideSpec, StoreSpec
from sawbench_kernels.registers import lanes_of

FEW_TOKENS = 512
"""Below this many tokens a program takes one warp's worth of them, so that more multiprocessors work."""


class BiasTable(NamedTuple):
    """``R_j b`` for a kernel: ``own[d] cos[j, column[d]] + cross[d] sin[j, column[d]]``; column -1 does not turn.

    own, cross: float32 [H, D]; column: int32 [D]; cos, sin: float32 [positions, R].
    """

    own: Tensor
    cross: Tensor
    column: Tensor
    cos: Tensor
    sin: Tensor


def bias_table(split: KeyBias, positions: int, device: torch.device) -> BiasTable:
    """Tables for positions below ``positions``; cos and sin are shared by all layers that have ``split.rotary``."""
    own = split.bias.to(device, torch.float32).contiguous()
    first, second = split.rotary.pairs.to(device).unbind(-1)
    cross = torch.zeros_like(own)
    cross[:, first], cross[:, second] = -own[:, second], own[:, first]
    column = torch.full((own.shape[1],), -1, dtype=torch.int32, device=device)
    column[first] = column[second] = torch.arange(len(first), dtype=torch.int32, device=device)
    return BiasTable(own, cross, column, *cos_sin_table(split.rotary, positions, device))


class SideTensors(NamedTuple):
    """A SideSpec on the device: float32, contiguous; ``order`` 1 where the rotation is dense or none."""

    order: int
    matrix: Tensor | None
    codebook: Tensor | None


class QuantizeStore:
    """quantize_store of one layer by the Triton kernel; made once, called every step.

    ``overflow`` (int32 [1], on the device) becomes 1 and stays so once an fp16 (scale, min) had to be saturated.

    Args:
        positions: one above the largest position that will come, where the spec has a key bias.

    Raises:
        ValueError: what ``spec`` asks for is nothing that the kernel does; the message names it.
    """

    def __init__(self, spec: StoreSpec, device: torch.device, positions: int = 131_072) -> None:
        check_sides(spec)
        self.spec = spec
        self.key, self.value = (prepare(side, device) for side in (spec.key, spec.value))
        self.overflow = torch.zeros(1, dtype=torch.int32, device=device)
        self.bias = list(bias_table(spec.key_bias, positions, device)) if spec.key_bias is not None else []

    def __call__(
        self,
        key: Tensor,
        value: Tensor,
        planes: Mapping[str, Tensor],
        slots: Tensor,
        positions: Tensor | None = None,
        key_index: Tensor | None = None,
        value_index: Tensor | None = None,
    ) -> None:
        """Write ``key`` and ``value`` into ``planes``.

        Args:
            key, value: fp16 or bf16 [T, H_kv, D]; any strides that keep vectors contiguous and 16-byte aligned.
            planes: :meth:`PageLayout.view` of one layer's pool.
            slots: int64 [T]; -1 is skipped.
            positions: int64 [T], where the spec has a key bias.
            key_index, value_index: int64 [T, books], where the layout stores centroids.

        Raises:
            ValueError: a tensor of a shape, dtype, device or stride that the kernel does not read.
        """
        layout = self.spec.layout
        check_rows(key, value, slots, layout)
        if (positions is None) == bool(self.bias):
            raise ValueError("positions come exactly where the spec has a key bias")
        for side, index in (("key", key_index), ("value", value_index)):
            if (index is None) == bool(getattr(layout, f"{side}_centroids")):
                raise ValueError(f"{side}_index comes exactly where the layout stores centroids of the {side}s")
        quantize_store(
            key, value, slots, planes["key.codes"], planes.get("key.pair"), planes.get("key.index"),
            planes["value.codes"], planes.get("value.pair"), planes.get("value.index"), self.overflow,
            [layout.key_bits, layout.value_bits], [self.key.order, self.value.order],
            key_index, self.key.codebook, self.key.matrix, value_index, self.value.codebook, self.value.matrix,
            positions, self.bias,
        )  # fmt: skip


def prepare(side: SideSpec, device: torch.device) -> SideTensors:
    """What the kernels read of ``side``."""
    book = None if side.codebook is None else side.codebook.to(device, torch.float32).contiguous()
    if isinstance(side.rotation, int):
        return SideTensors(side.rotation, None, book)
    return SideTensors(1, side.rotation.to(device, torch.float32).contiguous(), book)


@torch.library.custom_op(
    "sawbench::quantize_store",
    mutates_args=("key_codes", "key_pair", "key_plane", "value_codes", "value_pair", "value_plane", "overflow"),
)
def quantize_store(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    key_codes: Tensor,
    key_pair: Tensor | None,
    key_plane: Tensor | None,
    value_codes: Tensor,
    value_pair: Tensor | None,
    value_plane: Tensor | None,
    overflow: Tensor,
    bits: list[int],
    orders: list[int],
    key_index: Tensor | None,
    key_codebook: Tensor | None,
    key_matrix: Tensor | None,
    value_index: Tensor | None,
    value_codebook: Tensor | None,
    value_matrix: Tensor | None,
    positions: Tensor | None,
    bias: list[Tensor],
) -> None:
    """The launch. ``*_codes``, ``*_pair`` and ``*_plane`` (centroid indices) are planes of the pool; ``bias``: the
    tensors of BiasTable, or none; ``bits``, ``orders``: of keys and values."""
    tokens, heads, dim = key.shape
    if not tokens:
        return
    lanes = lanes_of(dim)
    warps = 1 if tokens < FEW_TOKENS else 4
    rows = 32 // lanes * warps
    own, cross, column, cos, sin = bias or [None] * 5
    sides = ((key_codes, key_pair, key_plane), (value_codes, value_pair, value_plane))
    with torch.cuda.device_of(key):
        store_kernel[(-(-tokens // rows), heads, 2)](
            key, value, slots, *(t for side in sides for t in _planes(side)),
            key_index, key_codebook, key_matrix, value_index, value_codebook, value_matrix,
            own, cross, column, cos, sin, positions, overflow, tokens,
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            *(_stride(t) for side in sides for t in _planes(side)), _per_head(key_matrix), _per_head(value_matrix),
            KEY_BITS=bits[0], VALUE_BITS=bits[1], KEY_ORDER=orders[0], VALUE_ORDER=orders[1],
            KEY_NORM=orders[0] ** -0.5, VALUE_NORM=orders[1] ** -0.5, H=heads, PAGE=key_codes.shape[2],
            KEY_C=_centroids(key_codebook), VALUE_C=_centroids(value_codebook),
            KEY_BOOKS=_books(key_index), VALUE_BOOKS=_books(value_index), PAIRS=cos.shape[1] if bias else 0,
            ROWS=rows, LANES=lanes, N=dim // lanes,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip


@quantize_store.register_fake
def _(*args: object, **kwargs: object) -> None:
    return None


def _planes(side: tuple[Tensor, Tensor | None, Tensor | None]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    codes, pair, index = side
    return words(codes) if codes.dtype == torch.uint8 else codes, None if pair is None else words(pair), index


def _stride(plane: Tensor | None) -> int:
    return 0 if plane is None else plane.stride(0)


def _per_head(matrix: Tensor | None) -> int:
    return matrix.stride(0) if matrix is not None and matrix.dim() == 3 else 0


def _centroids(codebook: Tensor | None) -> int:
    return 0 if codebook is None else codebook.shape[1]


def _books(index: Tensor | None) -> int:
    return 1 if index is None else index.shape[1]

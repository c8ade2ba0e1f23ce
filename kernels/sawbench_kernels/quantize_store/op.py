"""Checked entry to the quantize_store kernel; :mod:`.reference` is the specification."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sawbench_kernels.backend import inline_ptx
from sawbench_kernels.key_bias import cos_sin_table
from sawbench_kernels.launch import check_aligned, check_rows, check_sides, tile, words
from sawbench_kernels.paged_decode.naive import KeyBias
from sawbench_kernels.pages import PageLayout
from sawbench_kernels.quantize_store.kernel import store_kernel
from sawbench_kernels.quantize_store.spec import SideSpec, StoreSpec
from sawbench_kernels.registers import lanes_of

MANY = 2048
"""More programs of both K and V than a GPU holds at once: then those of turned keys take the values with them. Fewer,
or without a rotation, end sooner apart: on an H200, 8,192 plain tokens of 8 heads take 12.4 us apart and 13.3 together,
where K is turned 15.8 and 14.0."""


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


def biased_chunks(split: KeyBias, lanes: int) -> Tensor | None:
    """int32 [H]: bit c is set where the c-th 8 ``lanes`` pairs of a head have a bias (see :func:`.offset.load_halves`).

    None where pairs are not dimensions d and d + R, or R is no multiple of 8 ``lanes``.
    """
    pairs = split.rotary.pairs.cpu()
    count, step = len(pairs), 8 * lanes
    first = torch.arange(count)
    if count % step or not torch.equal(pairs, torch.stack((first, first + count), -1)):
        return None
    biased = (split.bias[:, : 2 * count].cpu() != 0).unflatten(1, (2, -1, step)).any(-1).any(1)
    return (biased.to(torch.int32) << torch.arange(count // step, dtype=torch.int32)).sum(1, dtype=torch.int32)


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
        self.bias: list[Tensor] = []
        if spec.key_bias is not None:
            self.bias = [*bias_table(spec.key_bias, positions, device)]
            dense = self.key.matrix is not None or self.value.matrix is not None
            chunks = biased_chunks(spec.key_bias, lanes_of(spec.layout.head_dim, dense))
            self.bias += [] if chunks is None else [chunks.to(device)]

    def __call__(
        self,
        key: Tensor,
        value: Tensor,
        pool: Tensor,
        slots: Tensor,
        positions: Tensor | None = None,
        key_index: Tensor | None = None,
        value_index: Tensor | None = None,
    ) -> None:
        """Write ``key`` and ``value`` into ``pool``.

        Args:
            key, value: fp16 or bf16 [T, H_kv, D]; any strides that keep vectors contiguous and 16-byte aligned.
            pool: uint8 [pages, page_bytes], one layer's pages. (Not their planes: torch.compile cannot trace writes
                through views of several dtypes.)
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
        if pool.dtype != torch.uint8 or pool.dim() != 2 or pool.shape[1] != layout.page_bytes:
            raise ValueError(f"pool must be uint8 [pages, {layout.page_bytes}], not {pool.dtype} {tuple(pool.shape)}")
        sizes = [layout.page_size, layout.key_bits, layout.value_bits]
        sizes += [layout.key_centroids, layout.value_centroids, layout.books]
        quantize_store(
            key, value, slots, pool, self.overflow, sizes, [self.key.order, self.value.order],
            key_index, self.key.codebook, self.key.matrix, value_index, self.value.codebook, self.value.matrix,
            positions, self.bias,
        )  # fmt: skip


def prepare(side: SideSpec, device: torch.device) -> SideTensors:
    """What the kernels read of ``side``."""
    book = None if side.codebook is None else side.codebook.to(device, torch.float32).contiguous()
    if isinstance(side.rotation, int):
        return SideTensors(side.rotation, None, book)
    return SideTensors(1, side.rotation.to(device, torch.float32).contiguous(), book)


@torch.library.custom_op("sawbench::quantize_store", mutates_args=("pool", "overflow"))
def quantize_store(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    pool: Tensor,
    overflow: Tensor,
    sizes: list[int],
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
    """The launch. ``sizes``: page size, bits of K and V, stored centroids of K and V, and books of the page layout;
    ``orders``: of K and V; ``bias``: the tensors of BiasTable, and of biased_chunks where it has one, or none."""
    tokens, heads, dim = key.shape
    check_aligned("key", key)
    check_aligned("value", value)
    if not tokens:
        return
    dense = key_matrix is not None or value_matrix is not None
    lanes = lanes_of(dim, dense)
    warps, rows = tile(lanes, dense)
    tables: list[Tensor | None] = [*bias, *[None] * (6 - len(bias))]
    own, cross, column, cos, sin, chunks = tables
    page, *bits, key_count, value_count, books = sizes
    layout = PageLayout(heads, dim, page, bits[0], bits[1], key.dtype, key_count, value_count, books)
    planes = layout.view(pool)
    sides = _planes(planes, "key") + _planes(planes, "value")
    programs = heads * -(-tokens // rows)
    together = takes_both(lanes, orders) and not dense and programs > MANY
    with torch.cuda.device_of(key):
        store_kernel[(programs if together else 2 * programs,)](
            key, value, slots, *sides,
            key_index, key_codebook, key_matrix, value_index, value_codebook, value_matrix,
            own, cross, column, cos, sin, chunks, positions, overflow, tokens,
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            *(_stride(t) for t in sides), _per_head(key_matrix), _per_head(value_matrix),
            KEY_BITS=bits[0], VALUE_BITS=bits[1], KEY_ORDER=orders[0], VALUE_ORDER=orders[1],
            KEY_NORM=orders[0] ** -0.5, VALUE_NORM=orders[1] ** -0.5, H=heads, PAGE=page,
            KEY_C=_centroids(key_codebook), VALUE_C=_centroids(value_codebook),
            KEY_BOOKS=books, VALUE_BOOKS=books, PAIRS=0 if cos is None else cos.shape[1],
            TOGETHER=together, ROWS=rows, LANES=lanes, N=dim // lanes, FAST=inline_ptx(key.device),
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip


@quantize_store.register_fake
def _(*args: object, **kwargs: object) -> None:
    return None


def takes_both(lanes: int, orders: Sequence[int]) -> bool:
    """Whether programs that are many take both K and V: something is turned, and the registers of a thread suffice."""
    return max(orders) > 1 and lanes > 1


def _planes(planes: Mapping[str, Tensor], side: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Codes and pairs of ``side`` as int32 words, and its indices."""
    codes, pair = planes[f"{side}.codes"], planes.get(f"{side}.pair")
    packed = words(codes) if codes.dtype == torch.uint8 else codes
    return packed, None if pair is None else words(pair), planes.get(f"{side}.index")


def _stride(plane: Tensor | None) -> int:
    return 0 if plane is None else plane.stride(0)


def _per_head(matrix: Tensor | None) -> int:
    return matrix.stride(0) if matrix is not None and matrix.dim() == 3 else 0


def _centroids(codebook: Tensor | None) -> int:
    return 0 if codebook is None else codebook.shape[1]

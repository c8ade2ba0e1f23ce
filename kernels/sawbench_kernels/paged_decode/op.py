"""Launches of paged decode, as torch custom ops that torch.compile and CUDA graphs take."""

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sawbench_kernels.backend import inline_ptx, interpreted, overlaps
from sawbench_kernels.paged_decode.kernel import decode_kernel
from sawbench_kernels.paged_decode.merge import merge_kernel, project_kernel
from sawbench_kernels.paged_decode.tables import COARSE, FINE

MOST_SUMMED = 256
"""Value centroids whose probabilities are summed; of more, each token's centroid is gathered, which costs more."""
LEAST_TILES = 4
"""Tiles of the shortest share."""


class Tuning(NamedTuple):
    """TILE tokens a step, software-pipeline stages, programs that one multiprocessor is given, warps of a program."""

    tile: int
    stages: int
    resident: int
    warps: int = 1


def tuning(key_bits: int, value_bits: int, dim: int, heads: int, rows: int = 0, centroids: int = 0) -> Tuning:
    """Five stages hold two tiles in shared memory: the pipeline spends the others on the block table. Two hold one.

    A bias of many ``rows`` and sums of ``centroids`` leave registers for short tiles alone, one at a time; on top of
    large heads, 16-bit pages, more than eight query ``heads`` (columns) or one another they need a second warp's.
    """
    token_bytes = dim * (key_bits + value_bits) // 8
    short = 32 if token_bytes <= 512 else 16
    resident = next((n for limit, n in ((128, 8), (192, 7), (256, 6)) if token_bytes <= limit), 4)
    crowded = rows > 16 and (dim > 128 or heads > 8 or centroids > 0 or 16 in (key_bits, value_bits))
    if crowded or centroids > MOST_SUMMED:
        return Tuning(short, 3, 4, 2)
    if rows > 16:
        return Tuning(short, 2, resident)
    if centroids:
        return Tuning(short, 3, resident)
    return Tuning(64 if token_bytes <= 256 else short, 5, resident)


@cache
def _multiprocessors(index: int | None) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def program_count(kv_heads: int, device: torch.device, resident: int) -> int:
    """Programs of one KV head, so that together they fill the device once; it depends on shapes alone."""
    multiprocessors = _multiprocessors(device.index) if device.type == "cuda" else 2
    return max(multiprocessors * resident // kv_heads, 1)


def columns(group: int) -> int:
    """Columns of a matrix instruction that hold the G query heads of a KV head."""
    return 8 if group <= 8 else 16


@torch.library.custom_op("sawbench::project", mutates_args=())
def project(x: Tensor, matrix: Tensor, add: Tensor | None, by_head: bool, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """``x`` [B, H_q, K] times a matrix shared by, or of each, KV head; plus ``add``.

    ``matrix``: bf16 [2, 1 or H_kv, K, N], high and low halves. Result [B, H_q, N], or [B, H_kv, N, columns]
    with ``by_head``: a centroid's scores of a group's G heads side by side, columns from G on undefined.
    """
    batch, heads, depth = x.shape
    group, width = heads // kv_heads, matrix.shape[3]
    if by_head:
        out = torch.empty(batch, kv_heads, width, columns(group), dtype=dtype, device=x.device)
        strides = (out.stride(0), out.stride(1), 1, columns(group))
    else:
        out = torch.empty(batch, heads, width, dtype=dtype, device=x.device)
        strides = (out.stride(0), group * width, width, 1)
    block = min(64, max(16, triton.next_power_of_2(width)))
    rows = 16 if batch * group <= 256 else 64
    grid = (triton.cdiv(batch * group, rows), kv_heads, triton.cdiv(width, block))
    added = add if add is not None else x
    with torch.cuda.device_of(x):
        project_kernel[grid](
            x, matrix, added, out, batch * group,
            x.stride(0), x.stride(1), added.stride(0), added.stride(1), *strides,
            matrix.stride(0), matrix.stride(1) if matrix.shape[1] > 1 else 0,
            G=group, K=depth, N=width, ADDS=add is not None, SPLIT=x.dtype == torch.float32,
            BM=rows, BK=min(128, max(16, triton.next_power_of_2(depth))), BN=block, WIDE=interpreted(),
            LAUNCHES=overlaps(x.device), num_warps=4,
        )  # fmt: skip
    return out


@project.register_fake
def _(x: Tensor, matrix: Tensor, add: Tensor | None, by_head: bool, kv_heads: int, dtype: torch.dtype) -> Tensor:
    width = matrix.shape[3]
    shape = (len(x), kv_heads, width, columns(x.shape[1] // kv_heads)) if by_head else (*x.shape[:2], width)
    return x.new_empty(shape, dtype=dtype)


@torch.library.custom_op("sawbench::paged_decode", mutates_args=())
def decode(
    q: Tensor,
    raw: Tensor,
    key: Tensor,
    key_pair: Tensor | None,
    value: Tensor,
    value_pair: Tensor | None,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
    bits: list[int],
    orders: list[int],
    signs: Tensor | None,
    bias: list[Tensor],
    key_index: Tensor | None,
    key_scores: Tensor | None,
    value_index: Tensor | None,
    shifts: Tensor | None,
    numbers: Tensor | None,
    value_centroids: int,
    value_mean: Tensor | None,
    wide_output: bool,
    splits: int,
) -> list[Tensor]:
    """Attention over pages, and with a value codebook what its centroids add.

    Args:
        q: [B, H_q, D], what meets the codes: the query itself, or its product with a dense matrix in float32, which
            must then be the launch right before this one.
        raw: the query as the model made it.
        key, value: [P, H_kv, page, words]; their pairs [P, H_kv, page] as int32.
        bits, orders: of keys and values. ``signs``: see :func:`.tables.slice_signs`.
        bias: the five tensors of BiasTables, or none.
        key_index, value_index: [P, books, page]. ``shifts``: int32 [2, FINE], where a token's index lies in its
            32-bit word, in keys and values.
        numbers: of C value centroids the numbers, fp16 [C] of 0 to C - 1, for the probability of each to be summed; or
            the centroids, bf16 [H_kv, C, D], for their sum, weighted by probabilities.
        wide_output: float32 instead of raw's dtype.
        splits: programs of a KV head, 0 for as many as fill the device.

    Returns:
        [out [B, H_q, D]], and if ``value_centroids`` is C > 0 float32 [B, H_q, C] or [B, H_q, D].
    """
    batch, heads, dim = q.shape
    kv_heads, page = key.shape[1], key.shape[2]
    rows = bias[2].shape[1] if bias else 0
    group = heads // kv_heads
    tuned = tuning(bits[0], bits[1], dim, columns(group), rows, value_centroids)
    programs = splits or program_count(kv_heads, q.device, tuned.resident)
    count, wide = programs + batch, interpreted()
    part = torch.empty(count, heads, dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(count, heads, dtype=torch.float32, device=q.device)
    sums = centroid_sums(numbers, value_centroids)
    part_centroids = part.new_empty((count, heads, sums)) if sums else part
    dims, coefficients, pair, fine, coarse = bias or [q] * 5
    early = overlaps(q.device) and (q.dtype == torch.float32 or key_scores is not None)
    span = slice_span(bits[0], dim, orders[0])
    with torch.cuda.device_of(q):
        decode_kernel[(programs, kv_heads)](
            q, raw, signs if signs is not None else q, key, key_pair if key_pair is not None else key,
            value, value_pair if value_pair is not None else value, block_table, lengths, part, lse,
            dims, coefficients, pair, fine, coarse,
            _words(key_index, key), key_scores if key_scores is not None else part,
            _words(value_index, value), shifts if shifts is not None else q, numbers if numbers is not None else q,
            part_centroids,
            batch, scale,
            q.stride(0), q.stride(1), raw.stride(0), raw.stride(1), block_table.stride(0),
            key.stride(0), page_stride(key_pair), value.stride(0), page_stride(value_pair),
            page_stride(key_index, 4), page_stride(value_index, 4), coarse.shape[1] if bias else 0,
            H=kv_heads, G=group, D=dim, PAGE=page, KB=bits[0], VB=bits[1], ORDER=orders[0], SPAN=span,
            R2=rows, CK=key_scores.shape[2] if key_scores is not None else 0, CV=value_centroids,
            KEY_BOOKS=books(key_index), VALUE_BOOKS=books(value_index),
            KEY_INDEX_BITS=index_bits(key_index), VALUE_INDEX_BITS=index_bits(value_index),
            GATHERS=sums != value_centroids,
            TILE=tuned.tile, NC=columns(group), STAGES=tuned.stages, LEAST=LEAST_TILES,
            COARSE=COARSE, FINE=FINE, FAST=inline_ptx(q.device), WIDE=wide, WAITS=early,
            num_warps=tuned.warps, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    out = torch.empty(batch, heads, dim, dtype=torch.float32 if wide_output else raw.dtype, device=q.device)
    _merge(part, lse, lengths, value_mean, out, programs, kv_heads, tuned.tile, orders[1])
    if not sums:
        return [out]
    centroids = torch.empty(batch, heads, sums, dtype=torch.float32, device=q.device)
    _merge(part_centroids, lse, lengths, None, centroids, programs, kv_heads, tuned.tile, 1)
    return [out, centroids]


@decode.register_fake
def _(
    q: Tensor,
    raw: Tensor,
    key: Tensor,
    key_pair: Tensor | None,
    value: Tensor,
    value_pair: Tensor | None,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
    bits: list[int],
    orders: list[int],
    signs: Tensor | None,
    bias: list[Tensor],
    key_index: Tensor | None,
    key_scores: Tensor | None,
    value_index: Tensor | None,
    shifts: Tensor | None,
    numbers: Tensor | None,
    value_centroids: int,
    value_mean: Tensor | None,
    wide_output: bool,
    splits: int,
) -> list[Tensor]:
    out = torch.empty_like(raw, dtype=torch.float32 if wide_output else raw.dtype).contiguous()
    sums = raw.new_empty((*raw.shape[:2], centroid_sums(numbers, value_centroids)), dtype=torch.float32)
    return [out, sums] if value_centroids else [out]


def centroid_sums(numbers: Tensor | None, value_centroids: int) -> int:
    """Sums over the tokens of a query head: one a centroid, or one a dimension of the gathered centroids."""
    return numbers.shape[2] if numbers is not None and numbers.dim() == 3 else value_centroids


def slice_span(bits: int, dim: int, order: int) -> int:
    """Slices of the packed head that one Hadamard block spans."""
    if order == 1 or bits == 16:
        return 1
    return 2 if bits == 8 else max(1, order // (dim // 4))


def page_stride(plane: Tensor | None, word: int = 0) -> int:
    """Elements between pages, or words of ``word`` bytes between them; 0 without a plane."""
    if plane is None:
        return 0
    return plane.stride(0) * plane.element_size() // word if word else plane.stride(0)


def _words(index: Tensor | None, otherwise: Tensor) -> Tensor:
    """Indices as 32-bit words, which a kernel can copy ahead of time; narrower loads it cannot."""
    return index.view(torch.int32) if index is not None else otherwise


def index_bits(index: Tensor | None) -> int:
    return 8 * index.element_size() if index is not None else 8


def books(index: Tensor | None) -> int:
    return index.shape[1] if index is not None else 1


def _merge(
    part: Tensor,
    lse: Tensor,
    lengths: Tensor,
    mean: Tensor | None,
    out: Tensor,
    programs: int,
    kv_heads: int,
    tile: int,
    order: int,
) -> None:
    batch, heads, width = out.shape
    padded = triton.next_power_of_2(width)
    segments = min(triton.next_power_of_2(programs // batch + 2), max(1, 8192 // padded))
    with torch.cuda.device_of(part):
        merge_kernel[(batch, heads)](
            part, lse, lengths, mean if mean is not None else lse, out, batch, programs,
            H=kv_heads, G=heads // kv_heads, D=width, DP=padded, ORDER=order, MEANS=mean is not None,
            TILE=tile, LEAST=LEAST_TILES, SEGMENTS=segments,
            num_warps=max(1, min(8, segments * padded // 1024)),
        )  # fmt: skip

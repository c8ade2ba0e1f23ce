"""Merging the items of a sequence, and the products with a dense matrix before and after decoding."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from sawbench_kernels.paged_decode.schedule import share_of, tiles_before


@triton.jit
def _signs(N: tl.constexpr):
    """Sylvester's Hadamard matrix of order N <= 256 as float32 [N, N]: the parity of the bits that i and j share."""
    shared = tl.arange(0, N)[:, None] & tl.arange(0, N)[None, :]
    shared ^= shared >> 4
    shared ^= shared >> 2
    shared ^= shared >> 1
    return 1.0 - 2.0 * (shared & 1).to(tl.float32)


@triton.jit
def _hadamard(x, DP: tl.constexpr, ORDER: tl.constexpr):
    """Block Hadamard of a vector [DP] in float32, as H_a (x) H_b with a * b = ORDER and b = 16."""
    B: tl.constexpr = 16
    A: tl.constexpr = ORDER // B
    x = tl.reshape(x, [DP // ORDER, A, 1, B])
    x = tl.sum(x * _signs(B)[None, None, :, :], 3)
    if A > 1:
        x = tl.reshape(x, [DP // ORDER, 1, A, B])
        x = tl.sum(x * tl.reshape(_signs(A), [1, A, A, 1]), 2)
    return tl.reshape(x, [DP]) * (ORDER**-0.5)


@triton.jit(do_not_specialize=["B", "programs"])
def merge_kernel(
    PART, LSE, LENGTHS, MEAN, OUT, B, programs,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ORDER: tl.constexpr, MEANS: tl.constexpr,
    TILE: tl.constexpr, LEAST: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """A sequence's segments weighted by their sums of exponentials, for one query head; rotated back; plus a mean.

    PART float32 [segments, Hq, D], LSE float32 [segments, Hq] in log2; OUT [B, Hq, D]. An empty sequence gives zeros.
    """
    b = tl.program_id(0)
    head = tl.program_id(1)
    share = share_of(tiles_before(LENGTHS, B, TILE, 128), programs, LEAST)
    begin = tiles_before(LENGTHS, b, TILE, 128)
    tiles = tl.cdiv(tl.load(LENGTHS + b).to(tl.int32), TILE)
    first = begin // share
    count = tl.where(tiles > 0, (begin + tiles - 1) // share - first + 1, 0)

    segment = tl.arange(0, SEGMENTS)
    d = tl.arange(0, DP)
    top = -float("inf")
    total = 0.0
    out = tl.zeros([DP], tl.float32)
    for start in range(0, count, SEGMENTS):
        live = start + segment < count
        row = (first + b + start + segment) * (H * G) + head
        lse = tl.load(LSE + row, mask=live, other=-float("inf"))
        part = tl.load(
            PART + row.to(tl.int64)[:, None] * D + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0
        )
        largest = tl.maximum(top, tl.max(lse))
        weight = tl.exp2(lse - largest)
        shrink = tl.exp2(top - largest)
        total = total * shrink + tl.sum(weight)
        out = out * shrink + tl.sum(weight[:, None] * part, 0)
        top = largest
    out /= tl.maximum(total, 1e-30)
    if ORDER > 1:
        out = _hadamard(out, DP, ORDER)
    if MEANS:
        out += tl.where(count > 0, tl.load(MEAN + (head // G) * D + d, mask=d < D, other=0.0), 0.0)
    at = OUT + (b * H * G + head).to(tl.int64) * D + d
    tl.store(at, out.to(OUT.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["rows"])
def project_kernel(
    X,
    MATRIX,
    ADD,
    OUT,
    rows,
    stride_x,
    stride_x_head,
    stride_add,
    stride_add_head,
    stride_out,
    stride_out_kv,
    stride_out_head,
    stride_out_n,
    stride_low,
    stride_matrix,
    G: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    ADDS: tl.constexpr,
    SPLIT: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BN: tl.constexpr,
    WIDE: tl.constexpr,
    LAUNCHES: tl.constexpr,
):
    """OUT = X MATRIX (+ ADD) for the query heads of one KV head, BM rows (sequence, head of the group) at a time.

    MATRIX is bf16 high [.., K, N] and, ``stride_low`` on, bf16 low: products of bf16 halves leave an error of 2^-16.
    ``SPLIT``: X is float32 and is halved as well; otherwise X is a 16-bit query.
    """
    if LAUNCHES:
        gdc_launch_dependents()
    h = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    b = (row // G).to(tl.int64)
    g = row % G
    live = row < rows
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        at = X + (b * stride_x + (h * G + g) * stride_x_head)[:, None] + k[None, :]
        x = tl.load(at, mask=live[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
        at = MATRIX + h * stride_matrix + k[:, None] * N + n[None, :]
        inside = (k < K)[:, None] & (n < N)[None, :]
        high = tl.load(at, mask=inside, other=0.0)
        low = tl.load(at + stride_low, mask=inside, other=0.0)
        if WIDE:
            acc = tl.dot(x, high.to(tl.float32) + low.to(tl.float32), acc, input_precision="ieee")
        else:
            x_high = x.to(tl.bfloat16)
            if SPLIT:
                x_low = (x - x_high.to(tl.float32)).to(tl.bfloat16)
                acc = tl.dot(x_low, high, acc)
            acc = tl.dot(x_high, low, acc)
            acc = tl.dot(x_high, high, acc)
    inside = live[:, None] & (n < N)[None, :]
    if ADDS:
        at = ADD + (b * stride_add + (h * G + g) * stride_add_head)[:, None] + n[None, :]
        acc += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    at = OUT + (b * stride_out + h * stride_out_kv + g * stride_out_head)[:, None] + n[None, :] * stride_out_n
    tl.store(at, acc.to(OUT.dtype.element_ty), mask=inside)

"""The Hadamard butterflies in Triton, on heads held in registers (see :mod:`sawbench_kernels.registers`)."""

import triton
import triton.language as tl

from sawbench_kernels.registers import load_row, store_row


@triton.jit
def _stage(row, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, STRIDE: tl.constexpr):
    out = ()
    if LANES == 2 and STRIDE == 8:
        lane = tl.broadcast_to(tl.arange(0, LANES)[None, :], [ROWS, LANES])
        sign = tl.where(lane == 0, 1.0, -1.0)
        for i in tl.static_range(N):
            out = out + (tl.fma(row[i], sign, tl.gather(row[i], lane ^ 1, 1)),)
    else:
        APART: tl.constexpr = STRIDE // LANES if STRIDE > 8 else STRIDE
        for i in tl.static_range(N):
            out = out + (row[i ^ APART] - row[i] if i & APART else row[i] + row[i ^ APART],)
    return out


@triton.jit
def rotate(row, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr):
    """Every block of ORDER dimensions times the orthonormal Hadamard matrix; NORM is ORDER ** -0.5.

    The butterflies run from stride 1 upwards, then comes one product with NORM: naive's order, hence naive's bits.
    """
    for bit in tl.static_range(8):
        if 1 << bit < ORDER:
            row = _stage(row, ROWS, LANES, N, 1 << bit)
    out = ()
    for i in tl.static_range(N):
        out = out + (row[i] * NORM,)
    return out


@triton.jit
def hadamard_kernel(
    X, OUT, rows, heads, x_row, x_head, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """X, OUT: int32 words of 16-bit vectors [rows, heads, D]; ``x_row``, ``x_head`` are X's strides in words."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    mask = (row < rows)[:, None]
    source = X + (row * x_row + head * x_head)[:, None]
    target = OUT + ((row * heads + head) * (N * LANES // 2))[:, None]
    x = load_row(source, mask, ROWS, LANES, N, DTYPE)
    store_row(target, rotate(x, ROWS, LANES, N, ORDER, NORM), mask, ROWS, LANES, N, DTYPE)

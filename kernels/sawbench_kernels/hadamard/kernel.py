"""The Hadamard butterflies in Triton, on heads held in registers (see :mod:`sawbench_kernels.registers`)."""

import triton
import triton.language as tl

from sawbench_kernels.registers import load_row, store_row


@triton.jit
def _stage(row, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, STRIDE: tl.constexpr):
    out = ()
    if STRIDE >= 8 and STRIDE < 8 * LANES:
        lane = tl.broadcast_to(tl.arange(0, LANES)[None, :], [ROWS, LANES])
        sign = tl.where((lane & STRIDE // 8) == 0, 1.0, -1.0)
        for i in tl.static_range(N):
            out = out + (tl.fma(row[i], sign, tl.gather(row[i], lane ^ STRIDE // 8, 1)),)
    else:
        APART: tl.constexpr = STRIDE if STRIDE < 8 else STRIDE // LANES
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


@triton.jit(do_not_specialize=["rows"])
def hadamard_kernel(
    X, OUT, rows, heads, x_row, x_head,
    ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """X: 16-bit floats [rows, heads, D] with strides ``x_row`` and ``x_head``; OUT: the same, contiguous."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    mask = (row < rows)[:, None]
    x = load_row(X + (row * x_row + head * x_head)[:, None], mask, ROWS, LANES, N)
    out = OUT + ((row * heads + head) * (N * LANES))[:, None]
    store_row(out, rotate(x, ROWS, LANES, N, ORDER, NORM), mask, ROWS, LANES, N)

"""The store path of a dense rotation: one matrix product a field of the head, then the same affine codes.

The product runs as three TF32 products ("tf32x3"), near float32. Its order of summation is the matrix unit's, so codes
equal naive's except where a value lies within that rounding of a step's edge.
"""

import triton
import triton.language as tl

from sawbench_kernels.quantize_store.affine import code, fp16_pair, grid_of, packed, store_pair
from sawbench_kernels.quantize_store.offset import offset
from sawbench_kernels.registers import round16


@triton.jit
def _fields(x, dim, MATRIX, D: tl.constexpr, W: tl.constexpr):
    """x [ROWS, DP] times MATRIX [D, D] as its four quarters, float32 [ROWS, W] each (zero beyond D / 4)."""
    w = tl.arange(0, W)
    out = ()
    for field in tl.static_range(4):
        at = MATRIX + dim[:, None] * D + field * (D // 4) + w[None, :]
        part = tl.load(at, mask=(dim < D)[:, None] & (w < D // 4)[None, :], other=0.0)
        out = out + (tl.dot(x, part, input_precision="tf32x3"),)
    return out


@triton.jit
def store_dense(
    source, words, pairs, head, centroid, place, mask, CODEBOOK, MATRIX, OWN, CROSS, COLUMN, COS, SIN, OVERFLOW,
    BITS: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Arguments as in kernel.py: pointers ``source``, ``words`` and ``pairs`` are [ROWS, 1]."""
    FIELD: tl.constexpr = D // 4
    W: tl.constexpr = triton.next_power_of_2(FIELD)
    dim = tl.arange(0, triton.next_power_of_2(D))
    read = mask & (dim < D)[None, :]
    x = tl.load(source + dim[None, :], mask=read, other=0.0).to(tl.float32)
    middle, turned = offset(
        x, dim, head, centroid, place, read, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN, D, PAIRS
    )  # fmt: skip
    y = _fields(x - middle - turned, dim, MATRIX, D, W)
    w = tl.arange(0, W)[None, :]
    inside = w < FIELD
    if BITS == 16:
        for field in tl.static_range(4):
            tl.store(words + field * FIELD + w, round16(y[field], words.dtype.element_ty), mask=mask & inside)
    else:
        LEVELS: tl.constexpr = (1 << BITS) - 1
        least = tl.minimum(tl.minimum(y[0], y[1]), tl.minimum(y[2], y[3]))
        most = tl.maximum(tl.maximum(y[0], y[1]), tl.maximum(y[2], y[3]))
        low = tl.min(tl.where(inside, least, float("inf")), 1)
        high = tl.max(tl.where(inside, most, -float("inf")), 1)
        scale, zero, overflow = fp16_pair(low, high, LEVELS)
        begin, steps = grid_of(scale, zero)
        if BITS == 4:
            word = packed(y, begin[:, None], steps[:, None], BITS, 4, False, True).to(tl.int16)
            tl.store(words.to(tl.pointer_type(tl.int16)) + w, word, mask=mask & inside)
        else:
            at = words.to(tl.pointer_type(tl.uint8)) + w
            for field in tl.static_range(4):
                one = code(y[field], begin[:, None], steps[:, None], BITS, False, True).to(tl.uint8)
                tl.store(at + field * FIELD, one, mask=mask & inside)
        store_pair(pairs, scale, zero, overflow, mask, OVERFLOW, 1)

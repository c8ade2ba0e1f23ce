"""The arithmetic of quantize_store/naive.py in Triton: the same roundings in the same order.

Kernels that use it are launched with ``enable_fp_fusion=False``: a fused multiply-add rounds once where naive rounds
twice, and a code in many thousands would differ.
"""

import triton
import triton.language as tl

FP16_MAX = tl.constexpr(65504.0)
FP16_TINY = tl.constexpr(2.0**-24)


@triton.jit
def fp16_pair(low, high, LEVELS: tl.constexpr):
    """(scale, min) in fp16, saturated, and where they had to be."""
    step = (high - low) * (1.0 / LEVELS)
    overflow = (tl.abs(low) > FP16_MAX) | (step > FP16_MAX)
    scale = tl.where(high == low, 1.0, tl.minimum(tl.maximum(step, FP16_TINY), FP16_MAX)).to(tl.float16)
    return scale, tl.minimum(tl.maximum(low, -FP16_MAX), FP16_MAX).to(tl.float16), overflow


@triton.jit
def grid_of(scale, zero):
    """(min - scale / 2, 1 / scale) in float32: where code 0 begins, and steps per unit."""
    wide = scale.to(tl.float32)
    return zero.to(tl.float32) - 0.5 * wide, tl.math.div_rn(1.0, wide)


@triton.jit
def code(x, begin, steps, LEVELS: tl.constexpr):
    """Code of x, int32."""
    return tl.minimum(tl.maximum((x - begin) * steps, 0.0), LEVELS * 1.0).to(tl.int32)


@triton.jit
def store_pair(pairs, scale, zero, overflow, mask, OVERFLOW, LANES: tl.constexpr):
    """(scale, min) [ROWS] as one int32 word each at pointers ``pairs`` [ROWS, 1], by the first of the row's LANES
    threads, and 1 at OVERFLOW where a row saturated: in the row's own layout, nothing crosses threads."""
    word = scale.to(tl.uint16, bitcast=True).to(tl.int32) | zero.to(tl.uint16, bitcast=True).to(tl.int32) << 16
    lane = tl.arange(0, LANES)[None, :]
    first = mask & (lane == 0)
    tl.store(pairs + lane, word[:, None] + lane * 0, mask=first)
    flags = OVERFLOW + (word * 0)[:, None] + lane * 0
    tl.store(flags, word[:, None] * 0 + lane * 0 + 1, mask=first & overflow[:, None])


@triton.jit
def split_pair(word):
    """The int32 word of a stored pair as (scale, min) in float32."""
    scale = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)

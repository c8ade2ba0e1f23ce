"""The arithmetic of quantize_store/naive.py in Triton: the same roundings in the same order.

Codes are made of few instructions: on NVIDIA GPUs (``FAST``) no value is converted to an integer.

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
def clips(high, begin, steps, BITS: tl.constexpr):
    """Whether any vector whose largest value is ``high`` [ROWS] ends above the last code: 0 or 1. A (scale, min) pair
    that saturates brings that about, and its rounding where |min| is thousands of steps."""
    return tl.max(((high - begin) * steps >= 1.0 * (1 << BITS)).to(tl.int32), 0)


@triton.jit
def code(x, begin, steps, BITS: tl.constexpr, FAST: tl.constexpr, CLIP: tl.constexpr):
    """Code of x as an int32 whose low 16 bits hold it; in the fast path those above hold a constant.

    There all steps count as one, an exact power of two: a product that saturates to 0 to 1 clips below, and a sum that
    rounds toward zero, with the power of two whose last place is a code's unit, leaves the code in the mantissa.
    Not CLIP: no value lies above the last code.
    """
    if FAST:
        ONE: tl.constexpr = 1 << BITS
        LIMIT: tl.constexpr = "min.f32 t, t, $3;" if CLIP else ""
        bits = tl.inline_asm_elementwise(
            "{ .reg .f32 t; mul.rn.sat.f32 t, $1, $2; " + LIMIT + " add.rz.f32 t, t, $4; mov.b32 $0, t; }",
            "=r,f,f,f,f",
            [x - begin, steps * (1.0 / ONE), (ONE - 1.0) / ONE, 1.0 * (1 << 23 - BITS)],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        LEVELS: tl.constexpr = (1 << BITS) - 1
        bits = tl.minimum(tl.maximum((x - begin) * steps, 0.0), LEVELS * 1.0).to(tl.int32)
    return bits


@triton.jit
def packed(x, begin, steps, BITS: tl.constexpr, COUNT: tl.constexpr, FAST: tl.constexpr, CLIP: tl.constexpr):
    """Codes of a tuple of COUNT tensors side by side, the first in the lowest bits: an int32 of COUNT * BITS bits (of
    16 alone, the bits above say nothing).

    A multiplication and an addition a code. The codes' constants, the exponents of 2^19 and 2^15, add up to one, most
    of them beyond the word.
    """
    word = code(x[COUNT - 1], begin, steps, BITS, FAST, CLIP)
    for i in tl.static_range(1, COUNT):
        word = word * (1 << BITS) + code(x[COUNT - 1 - i], begin, steps, BITS, FAST, CLIP)
    if FAST and COUNT * BITS == 32:
        word += 0x27000000 if BITS == 4 else -0x47000000
    return word


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

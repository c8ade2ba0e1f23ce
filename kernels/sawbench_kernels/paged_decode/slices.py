"""Packed codes to matrix operands, for Triton kernels.

A 16-bit word holds F = 16 / bits fields. Field i of word w is dimension ``i * D/4 + w`` at 4 bits and ``2 w + i`` at
8 bits (:mod:`sawbench_kernels.packing`): each field of a tile of words is one slice of the head, and meets the same
slice of the query in one matrix product of depth D / F.

In the fast path a masked field is never converted. The bit pattern n of a small integer *is* the fp16 number
n * 2^-24: subnormals and the first normal binade share one spacing, and matrix units take subnormals exactly. One AND
makes two operands; the fields at bits 4 to 7 come out as 16 n, which the query (or the output) makes good. The plain
path shifts, masks and converts; it serves other GPUs and the interpreter.
"""

import triton
import triton.language as tl


@triton.jit
def slice_dims(i: tl.constexpr, w, BITS: tl.constexpr, W: tl.constexpr):
    """Dimensions of words ``w`` in slice ``i``."""
    return 2 * w + i if BITS == 8 else i * W + w


@triton.jit
def _low(words, MASK: tl.constexpr):
    return tl.inline_asm_elementwise(
        "and.b32 $0, $1, " + MASK + ";", "=r,r", [words], dtype=tl.int16, is_pure=True, pack=2
    )


@triton.jit
def _high(words, MASK: tl.constexpr):
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; shr.u32 t, $1, 8; and.b32 $0, t, " + MASK + "; }",
        "=r,r",
        [words],
        dtype=tl.int16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def _masked(words, i: tl.constexpr, BITS: tl.constexpr):
    """Two words at a time: field i where it stands in the low byte, or where the high byte's field comes to stand."""
    if BITS == 8:
        if i == 0:
            field = _low(words, "0x00ff00ff")
        else:
            field = _high(words, "0x00ff00ff")
    elif i == 0:
        field = _low(words, "0x000f000f")
    elif i == 1:
        field = _low(words, "0x00f000f0")
    elif i == 2:
        field = _high(words, "0x000f000f")
    else:
        field = _high(words, "0x00f000f0")
    return field


@triton.jit
def code_slice(words, i: tl.constexpr, BITS: tl.constexpr, FAST: tl.constexpr, DT: tl.constexpr):
    """Slice ``i`` of ``words`` as a matrix operand of dtype DT; 16-bit words are the values themselves."""
    if BITS == 16:
        operand = words.to(DT)
    elif FAST:
        operand = _masked(words, i, BITS).to(DT, bitcast=True)
    else:
        operand = ((words >> (i * BITS)) & ((1 << BITS) - 1)).to(tl.float32).to(DT)
    return operand


@triton.jit
def slice_weight(i: tl.constexpr, BITS: tl.constexpr, FAST: tl.constexpr):
    """What slice ``i`` must be multiplied by so that all slices count alike."""
    return 0.0625 if FAST and BITS == 4 and i % 2 == 1 else 1.0


@triton.jit
def unpair(pair, FAST: tl.constexpr):
    """(scale, min) in float32 from the fp16 pair read as one int32."""
    if FAST:
        low, high = tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
            "=f,=f,r",
            [pair],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        low = (pair & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        high = ((pair >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def exp2(x, FAST: tl.constexpr):
    """2^x; the fast form flushes results below 2^-126, which no sum here can see."""
    if FAST:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def equal(a, b, FAST: tl.constexpr, DT: tl.constexpr):
    """1 where fp16 integers ``a`` [M, 1] equal integers ``b`` [1, N], else 0, in dtype DT; to 2,048 fp16 is exact.

    ``a`` comes from memory: the compiler builds a matrix operand in registers only from what was loaded.
    """
    if FAST:
        left, right = tl.broadcast(a, b.to(tl.float16))
        same = tl.inline_asm_elementwise(
            "set.eq.f16x2.f16x2 $0, $1, $2;", "=r,r,r", [left, right], dtype=tl.float16, is_pure=True, pack=2
        ).to(DT)
    else:
        same = (a.to(tl.float32) == b.to(tl.float32)).to(DT)
    return same

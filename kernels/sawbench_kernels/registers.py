"""Triton building blocks for whole heads held in registers.

A program works on ROWS vectors of D dimensions. ``LANES`` neighbouring threads share a vector, 8 contiguous dimensions
(16 bytes of a 16-bit dtype) each, so that every load and store is a whole 32-byte sector; the rest of the vector is a
tuple of N = D / LANES tensors [ROWS, LANES]. Dimension d of the vector is tuple entry ``d / (8 LANES) * 8 + d % 8`` of
lane ``d / 8 % LANES``. What happens between tuple entries is plain arithmetic on registers: butterflies, extrema and
packing need neither shared memory nor barriers (one exchange between two lanes excepted).

LANES is 2 where a quarter of the head, a field of the 4-bit words, is a multiple of 16 dimensions, and 1 otherwise
(D = 96), so that all four fields of a word lie in one thread.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def lanes_of(head_dim: int) -> int:
    """Threads that share one vector of ``head_dim`` dimensions."""
    return 2 if head_dim % 64 == 0 else 1


@triton.jit
def split4(words, ROWS: tl.constexpr, LANES: tl.constexpr):
    """[ROWS, 4 LANES] to four tensors [ROWS, LANES]: the words that one thread loaded."""
    even, odd = tl.split(tl.reshape(words, [ROWS, LANES, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def join4(words, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Inverse of :func:`split4`."""
    pairs = tl.join(tl.join(words[0], words[2]), tl.join(words[1], words[3]))
    return tl.reshape(pairs, [ROWS, 4 * LANES])


@triton.jit
def widen(words, DTYPE: tl.constexpr):
    """int32 words to the two 16-bit floats in each, as float32. bfloat16 is the upper half of a float32."""
    if DTYPE == tl.bfloat16:
        return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    low = words.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
    return low, (words >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def bits16(x, DTYPE: tl.constexpr):
    """float32 rounded to nearest even to DTYPE, as int32 in 0..65535. (The interpreter truncates to bfloat16.)"""
    if INTERPRETED and DTYPE == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF
    return x.to(DTYPE).to(tl.uint16, bitcast=True).to(tl.int32)


@triton.jit
def narrow(low, high, DTYPE: tl.constexpr):
    """Inverse of :func:`widen`, rounding to nearest even."""
    return bits16(low, DTYPE) | bits16(high, DTYPE) << 16


@triton.jit
def load_row(words, mask, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, DTYPE: tl.constexpr):
    """Vectors of 16-bit floats at int32 pointers ``words`` [ROWS, 1] as N tensors float32 [ROWS, LANES]."""
    at = words + tl.arange(0, 4 * LANES)[None, :]
    row = ()
    for chunk in tl.static_range(N // 8):
        for pair in split4(tl.load(at + chunk * 4 * LANES, mask=mask, other=0), ROWS, LANES):
            row = row + widen(pair, DTYPE)
    return row


@triton.jit
def store_row(words, row, mask, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, DTYPE: tl.constexpr):
    """Inverse of :func:`load_row`."""
    at = words + tl.arange(0, 4 * LANES)[None, :]
    for chunk in tl.static_range(N // 8):
        out = ()
        for i in tl.static_range(4):
            out = out + (narrow(row[chunk * 8 + 2 * i], row[chunk * 8 + 2 * i + 1], DTYPE),)
        tl.store(at + chunk * 4 * LANES, join4(out, ROWS, LANES), mask=mask)


@triton.jit
def dimension(ENTRY: tl.constexpr, LANES: tl.constexpr):
    """Dimension of tuple entry ENTRY in each lane: int32 [LANES]."""
    return ENTRY // 8 * 8 * LANES + ENTRY % 8 + 8 * tl.arange(0, LANES)


@triton.jit
def extrema(row, N: tl.constexpr):
    """Minimum and maximum of each vector, [ROWS]."""
    low = row[0]
    high = row[0]
    for i in tl.static_range(1, N):
        low = tl.minimum(low, row[i])
        high = tl.maximum(high, row[i])
    return tl.min(low, 1), tl.max(high, 1)

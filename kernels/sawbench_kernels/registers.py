"""Triton building blocks for whole heads held in registers.

A program works on ROWS vectors of D dimensions. ``LANES`` neighbouring threads share a vector, 8 contiguous dimensions
(16 bytes of a 16-bit dtype) each, so that every load and store is a whole 32-byte sector; the rest of the vector is a
tuple of N = D / LANES tensors [ROWS, LANES]. Dimension d of the vector is tuple entry ``d / (8 LANES) * 8 + d % 8`` of
lane ``d / 8 % LANES``. What happens between tuple entries is plain arithmetic on registers: butterflies, extrema and
packing need neither shared memory nor barriers (butterflies between lanes are one exchange each).

A quarter of the head, a field of the 4-bit words, is a multiple of 8 LANES dimensions, so that all four fields of a
word lie in one thread: LANES is 1 for D = 96, 2 for 64, 4 for 128 and 256. More lanes exchange more in a rotation, but
leave registers for more programs at once, which is worth more: 4 are faster than 2 at D = 128, rotated or not.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def lanes_of(head_dim: int, dense: bool = False) -> int:
    """Threads that share one vector of ``head_dim`` dimensions; fewer beside a ``dense`` rotation, whose product spills
    where a program has fewer rows."""
    return 4 if head_dim % (256 if dense else 128) == 0 else 2 if head_dim % 64 == 0 else 1


@triton.jit
def split8(values, ROWS: tl.constexpr, LANES: tl.constexpr):
    """[ROWS, 8 LANES] to eight tensors [ROWS, LANES]: what one thread loaded."""
    even, odd = tl.split(tl.reshape(values, [ROWS, LANES, 2, 2, 2]))
    even0, even1 = tl.split(even)
    odd0, odd1 = tl.split(odd)
    x0, x4 = tl.split(even0)
    x2, x6 = tl.split(even1)
    x1, x5 = tl.split(odd0)
    x3, x7 = tl.split(odd1)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def split4(words, ROWS: tl.constexpr, LANES: tl.constexpr):
    """[ROWS, 4 LANES] to four tensors [ROWS, LANES]."""
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
def join8(row, FIRST: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Inverse of :func:`split8` for entries FIRST to FIRST + 7 of ``row``."""
    even0 = tl.join(row[FIRST], row[FIRST + 4])
    even1 = tl.join(row[FIRST + 2], row[FIRST + 6])
    odd0 = tl.join(row[FIRST + 1], row[FIRST + 5])
    odd1 = tl.join(row[FIRST + 3], row[FIRST + 7])
    values = tl.join(tl.join(even0, even1), tl.join(odd0, odd1))
    return tl.reshape(values, [ROWS, 8 * LANES])


@triton.jit
def round16(x, DTYPE: tl.constexpr):
    """float32 to the nearest DTYPE, ties to even. (The interpreter's own conversion to bfloat16 truncates.)"""
    if INTERPRETED and DTYPE == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def widen(word, DTYPE: tl.constexpr):
    """The two 16-bit floats in an int32 as float32. bfloat16 is the upper half of a float32: one instruction each."""
    if DTYPE == tl.bfloat16:
        pair = (word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True)
    else:
        low = word.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        pair = low, (word >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
    return pair


@triton.jit
def load_words(x, mask, LANES: tl.constexpr, N: tl.constexpr):
    """Vectors of 16-bit floats at pointers ``x`` [ROWS, 1] as N / 8 tensors int32 [ROWS, 4 LANES]; ``mask`` None: all.

    Unpacked later by :func:`chunk8`: until then a value takes half a register, so that many loads are under way.
    """
    at = x.to(tl.pointer_type(tl.int32)) + tl.arange(0, 4 * LANES)[None, :]
    words = ()
    for chunk in tl.static_range(N // 8):
        words = words + (tl.load(at + chunk * 4 * LANES, mask=mask),)
    return words


@triton.jit
def chunk8(words, DTYPE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """One tensor of :func:`load_words` as eight entries of the row, float32 [ROWS, LANES]."""
    pairs = split4(words, ROWS, LANES)
    return widen(pairs[0], DTYPE) + widen(pairs[1], DTYPE) + widen(pairs[2], DTYPE) + widen(pairs[3], DTYPE)


@triton.jit
def load8(x, chunk: tl.constexpr, mask, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Entries 8 chunk to 8 chunk + 7 of vectors of float32 at pointers ``x`` [ROWS, 1]; 0 where ``mask`` says no."""
    i = tl.arange(0, 4 * LANES)[None, :]
    at = x + chunk * 8 * LANES + i // 4 * 8 + i % 4
    if mask is None:
        first = split4(tl.load(at), ROWS, LANES) + split4(tl.load(at + 4), ROWS, LANES)
    else:
        first = split4(tl.load(at, mask=mask, other=0.0), ROWS, LANES)
        first = first + split4(tl.load(at + 4, mask=mask, other=0.0), ROWS, LANES)
    return first


@triton.jit
def load_row(x, mask, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr):
    """Vectors of 16-bit floats at pointers ``x`` [ROWS, 1] as N tensors float32 [ROWS, LANES]; ``mask`` None: all."""
    return row_of(load_words(x, mask, LANES, N), x.dtype.element_ty, ROWS, LANES, N)


@triton.jit
def row_of(words, DTYPE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr):
    """All of :func:`load_words` as the row, N tensors float32 [ROWS, LANES]."""
    row = ()
    for chunk in tl.static_range(N // 8):
        row = row + chunk8(words[chunk], DTYPE, ROWS, LANES)
    return row


@triton.jit
def store_row(out, row, mask, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr):
    """Inverse of :func:`load_row`."""
    at = out + tl.arange(0, 8 * LANES)[None, :]
    for chunk in tl.static_range(N // 8):
        values = join8(row, chunk * 8, ROWS, LANES)
        tl.store(at + chunk * 8 * LANES, round16(values, out.dtype.element_ty), mask=mask)


@triton.jit
def _extrema_of(row, FIRST: tl.constexpr, N: tl.constexpr):
    low = row[FIRST]
    high = row[FIRST]
    for i in tl.static_range(FIRST + 4, N, 4):
        low = tl.minimum(low, row[i])
        high = tl.maximum(high, row[i])
    return low, high


@triton.jit
def extrema(row, N: tl.constexpr):
    """Minimum and maximum of each vector, [ROWS], by four chains: in one, each instruction would wait for the last."""
    low0, high0 = _extrema_of(row, 0, N)
    low1, high1 = _extrema_of(row, 1, N)
    low2, high2 = _extrema_of(row, 2, N)
    low3, high3 = _extrema_of(row, 3, N)
    low = tl.minimum(tl.minimum(low0, low1), tl.minimum(low2, low3))
    high = tl.maximum(tl.maximum(high0, high1), tl.maximum(high2, high3))
    return tl.min(low, 1), tl.max(high, 1)


@triton.jit
def _of_halves(KIND: tl.constexpr, a, b, DTYPE: tl.constexpr):
    """KIND ("min" or "max") of the two 16-bit floats in ``a`` and those in ``b``, in one instruction."""
    SUFFIX: tl.constexpr = ".bf16x2" if DTYPE == tl.bfloat16 else ".f16x2"
    return tl.inline_asm_elementwise(
        KIND + SUFFIX + " $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _extreme_of_words(KIND: tl.constexpr, words, DTYPE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    word = words[0]
    for chunk in tl.static_range(1, len(words)):
        word = _of_halves(KIND, word, words[chunk], DTYPE)
    parts = split4(word, ROWS, LANES)
    left = _of_halves(KIND, parts[0], parts[1], DTYPE)
    return widen(_of_halves(KIND, left, _of_halves(KIND, parts[2], parts[3], DTYPE), DTYPE), DTYPE)


@triton.jit
def extrema_of_words(words, DTYPE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """:func:`extrema` of what :func:`load_words` loaded, two values an instruction: NVIDIA GPUs from sm_80 on."""
    low = _extreme_of_words("min", words, DTYPE, ROWS, LANES)
    high = _extreme_of_words("max", words, DTYPE, ROWS, LANES)
    return tl.min(tl.minimum(low[0], low[1]), 1), tl.max(tl.maximum(high[0], high[1]), 1)

"""What a token's vector is moved by before it is rotated: a centroid, and the key bias at its position.

:func:`offset` takes rotary pairs in any order, a gather a dimension. :func:`load_halves` takes the usual one, dimension
d with d + PAIRS: a cosine and a sine serve both, and everything comes in 16-byte loads, all of them under way at once.
"""

import triton
import triton.language as tl

from sawbench_kernels.registers import chunk8, load8, load_words


@triton.jit
def _chunk(
    words, chunk: tl.constexpr, book, mask, CENTRED: tl.constexpr, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Eight entries of the row, less the centroid at ``book`` [ROWS, 1] where there is one."""
    row = chunk8(words[chunk], DTYPE, ROWS, LANES)
    if CENTRED:
        middle = load8(book, chunk, mask, ROWS, LANES)
        moved = ()
        for i in tl.static_range(8):
            moved = moved + (row[i] - middle[i],)
        row = moved
    return row


@triton.jit
def load_halves(
    x, head, centroid, place, mask, CODEBOOK, OWN, CHUNKS, COS, SIN, PAIRS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Vectors at ``x`` [ROWS, 1] less centroid and bias, as :func:`.registers.load_row` has them.

    Dimensions d and d + PAIRS are a pair, and 8 LANES divides PAIRS. Bit c of CHUNKS int32 [H]: the c-th 8 LANES pairs
    of the head have a bias; only of those are cosines and sines read.
    """
    D: tl.constexpr = N * LANES
    HALF: tl.constexpr = PAIRS // (8 * LANES)
    DTYPE: tl.constexpr = x.dtype.element_ty
    CENTRED: tl.constexpr = CODEBOOK is not None
    words = load_words(x, None, LANES, N)
    book = x
    if CENTRED:
        book = CODEBOOK + (centroid * D)[:, None]
    own = OWN + head * D + tl.zeros([ROWS, 1], tl.int32)  # every row reads it, since passing it on costs more
    turn = (place * PAIRS)[:, None]
    chunks = tl.load(CHUNKS + head)
    first = ()
    second = ()
    for chunk in tl.static_range(HALF):
        read = tl.where((chunks >> chunk & 1) == 1, mask, False)
        a = load8(own, chunk, None, ROWS, LANES)
        b = load8(own + PAIRS, chunk, None, ROWS, LANES)
        cos = load8(COS + turn, chunk, read, ROWS, LANES)
        sin = load8(SIN + turn, chunk, read, ROWS, LANES)
        low = _chunk(words, chunk, book, mask, CENTRED, DTYPE, ROWS, LANES)
        high = _chunk(words, chunk + HALF, book, mask, CENTRED, DTYPE, ROWS, LANES)
        for i in tl.static_range(8):
            first = first + (low[i] - (a[i] * cos[i] - b[i] * sin[i]),)
            second = second + (high[i] - (b[i] * cos[i] + a[i] * sin[i]),)
    row = first + second
    for chunk in tl.static_range(2 * HALF, N // 8):  # these do not turn
        still = load8(own, chunk, None, ROWS, LANES)
        rest = _chunk(words, chunk, book, mask, CENTRED, DTYPE, ROWS, LANES)
        for i in tl.static_range(8):
            row = row + (rest[i] - still[i],)
    return row


@triton.jit
def offset(
    x, dim, head, centroid, place, mask, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN,
    D: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The offset at dimensions ``dim`` [M] of vectors of ``head``: (centroid, bias), each float32 like ``x`` or 0.

    ``centroid`` int64 [ROWS]: row of CODEBOOK [H * C, D]. ``place`` int64 [ROWS]: row of COS and SIN [positions,
    PAIRS]. The bias at dimension d is ``OWN[d] cos + CROSS[d] sin`` at column COLUMN[d], a negative column being a
    dimension that does not turn (cos 1, sin 0). Only dimensions whose bias is not zero read the tables.
    """
    middle = tl.zeros_like(x)
    turned = tl.zeros_like(x)
    if CODEBOOK is not None:
        middle = tl.load(CODEBOOK + centroid[:, None] * D + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    if OWN is not None:
        inside = dim < D
        own = tl.load(OWN + head * D + dim, mask=inside, other=0.0)
        cross = tl.load(CROSS + head * D + dim, mask=inside, other=0.0)
        column = tl.load(COLUMN + dim, mask=inside, other=-1)
        turns = (column >= 0) & ((own != 0.0) | (cross != 0.0))
        at = place[:, None] * PAIRS + column[None, :]
        cos = tl.load(COS + at, mask=mask & turns[None, :], other=1.0)
        sin = tl.load(SIN + at, mask=mask & turns[None, :], other=0.0)
        turned = own[None, :] * cos + cross[None, :] * sin
    return middle, turned

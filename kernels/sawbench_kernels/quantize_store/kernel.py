"""quantize_store in Triton: new K and V to codes, scales and mins in their pages, in one launch.

A program takes ROWS tokens of one KV head, of K, of V, or (TOGETHER) of both: then V arrives while K is turned. The
heads of a token follow one another, as they lie in memory. A vector is turned while it lies in registers
(:mod:`sawbench_kernels.registers`), so a rotation moves no byte; a dense matrix takes the path of :mod:`.dense`. Every
rounding is naive's.
"""

import triton
import triton.language as tl

from sawbench_kernels.hadamard.kernel import rotate
from sawbench_kernels.quantize_store.affine import clips, fp16_pair, grid_of, packed, store_pair
from sawbench_kernels.quantize_store.dense import store_dense
from sawbench_kernels.quantize_store.offset import load_halves, offset
from sawbench_kernels.registers import extrema, extrema_of_words, join4, load_words, row_of, split8, store_row


@triton.jit
def _word4(row, begin, steps, FIELD: tl.constexpr, J: tl.constexpr, FAST: tl.constexpr, CLIP: tl.constexpr):
    K: tl.constexpr = J + 1
    low = row[J], row[FIELD + J], row[2 * FIELD + J], row[3 * FIELD + J]
    high = row[K], row[FIELD + K], row[2 * FIELD + K], row[3 * FIELD + K]
    return packed(low + high, begin, steps, 4, 8, FAST, CLIP)


@triton.jit
def _word8(row, begin, steps, J: tl.constexpr, FAST: tl.constexpr, CLIP: tl.constexpr):
    return packed((row[J], row[J + 1], row[J + 2], row[J + 3]), begin, steps, 8, 4, FAST, CLIP)


@triton.jit
def _store_codes(
    words, row, begin, steps, mask, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
    FAST: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    """Codes of ``row`` to int32 pointers ``words`` [ROWS, 1], as packing.py has them."""
    if BITS == 4:
        FIELD: tl.constexpr = N // 4
        at = words + tl.arange(0, 4 * LANES)[None, :]
        for chunk in tl.static_range(FIELD // 8):
            out = ()
            for i in tl.static_range(4):
                out = out + (_word4(row, begin, steps, FIELD, chunk * 8 + 2 * i, FAST, CLIP),)
            tl.store(at + chunk * 4 * LANES, join4(out, ROWS, LANES), mask=mask)
    else:
        at = words + tl.arange(0, 2 * LANES)[None, :]
        for chunk in tl.static_range(N // 8):
            low = _word8(row, begin, steps, chunk * 8, FAST, CLIP)
            pair = tl.join(low, _word8(row, begin, steps, chunk * 8 + 4, FAST, CLIP))
            tl.store(at + chunk * 2 * LANES, tl.reshape(pair, [ROWS, 2 * LANES]), mask=mask)


@triton.jit
def _load_moved(
    x, head, centroid, place, mask, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN, PAIRS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """:func:`load_row`, less centroid and bias."""
    row = ()
    for chunk in tl.static_range(N // 8):
        dim = chunk * 8 * LANES + tl.arange(0, 8 * LANES)
        values = tl.load(x + dim[None, :]).to(tl.float32)
        middle, turned = offset(
            values, dim, head, centroid, place, mask, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN, N * LANES, PAIRS
        )
        row = row + split8(values - middle - turned, ROWS, LANES)
    return row


@triton.jit
def _store_row(
    words, pairs, row, loaded, DTYPE: tl.constexpr, mask, OVERFLOW, ROWS: tl.constexpr, LANES: tl.constexpr,
    N: tl.constexpr, BITS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """``loaded``: the words of :func:`load_words` where ``row`` is nothing but these, else None."""
    if BITS == 16:
        store_row(words, row, mask, ROWS, LANES, N)
    else:
        LEVELS: tl.constexpr = (1 << BITS) - 1
        if FAST and loaded is not None:
            low, high = extrema_of_words(loaded, DTYPE, ROWS, LANES)
        else:
            low, high = extrema(row, N)
        scale, zero, overflow = fp16_pair(low, high, LEVELS)
        begin, steps = grid_of(scale, zero)
        clipped = 1
        if FAST:
            clipped = clips(high, begin, steps, BITS)
        if clipped:
            _store_codes(words, row, begin[:, None], steps[:, None], mask, ROWS, LANES, N, BITS, FAST, True)
        else:
            _store_codes(words, row, begin[:, None], steps[:, None], mask, ROWS, LANES, N, BITS, FAST, False)
        store_pair(pairs, scale, zero, overflow, mask, OVERFLOW, LANES)


@triton.jit
def _words_of(X, x_token, x_head, token, head, CODEBOOK, OWN, LANES: tl.constexpr, N: tl.constexpr):
    """:func:`load_words` of a side whose vectors nothing moves; else None."""
    words = None
    if CODEBOOK is None and OWN is None:
        words = load_words(X + (token * x_token + head * x_head)[:, None], None, LANES, N)
    return words


@triton.jit
def _side(
    loaded, token, live, page, slot, head, side, OVERFLOW,
    BITS: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr, H: tl.constexpr, PAGE: tl.constexpr,
    C: tl.constexpr, BOOKS: tl.constexpr, PAIRS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Keys, or values, of the program's tokens. ``slot``: their place in the page; ``loaded``: what came before."""
    X, x_token, x_head, CODES, codes_page, PAIR, pair_page, INDEX_PLANE, index_page = side[0]
    INDEX, CODEBOOK, MATRIX, matrix_head, OWN, CROSS, COLUMN, COS, SIN, CHUNKS, POSITIONS = side[1]
    D: tl.constexpr = N * LANES
    within = head * PAGE + slot
    centroid = token * 0 + head * C
    if INDEX is not None:
        book = head // (H // BOOKS)
        index = tl.load(INDEX + token * BOOKS + book)
        centroid += index
        if head % (H // BOOKS) == 0:
            at = INDEX_PLANE + page * index_page + book * PAGE + slot
            tl.store(at, index.to(INDEX_PLANE.dtype.element_ty), mask=live)
    place = token * 0
    if OWN is not None:
        place = tl.load(POSITIONS + token)
    source = X + (token * x_token + head * x_head)[:, None]
    words = CODES + (page * codes_page + within * (D if BITS == 16 else D * BITS // 32))[:, None]
    pairs = None
    if BITS < 16:
        pairs = PAIR + (page * pair_page + within)[:, None]
    mask = live[:, None]
    if MATRIX is not None:
        store_dense(
            source, words, pairs, head, centroid, place, mask, CODEBOOK, MATRIX + head * matrix_head,
            OWN, CROSS, COLUMN, COS, SIN, OVERFLOW, BITS, D, PAIRS,
        )  # fmt: skip
    else:
        if loaded is None:
            loaded = _words_of(X, x_token, x_head, token, head, CODEBOOK, OWN, LANES, N)
        if loaded is not None:
            row = row_of(loaded, X.dtype.element_ty, ROWS, LANES, N)
        elif CHUNKS is not None:
            row = load_halves(
                source, head, centroid, place, mask, CODEBOOK, OWN, CHUNKS, COS, SIN, PAIRS, ROWS, LANES, N
            )
        else:
            row = _load_moved(
                source, head, centroid, place, mask, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN, PAIRS, ROWS, LANES, N
            )
        if ORDER > 1:
            loaded = None
            row = rotate(row, ROWS, LANES, N, ORDER, NORM)
        _store_row(words, pairs, row, loaded, X.dtype.element_ty, mask, OVERFLOW, ROWS, LANES, N, BITS, FAST)


@triton.jit(do_not_specialize=["tokens"])
def store_kernel(
    KEY, VALUE, SLOTS, KEY_CODES, KEY_PAIR, KEY_PLANE, VALUE_CODES, VALUE_PAIR, VALUE_PLANE,
    KEY_INDEX, KEY_CODEBOOK, KEY_MATRIX, VALUE_INDEX, VALUE_CODEBOOK, VALUE_MATRIX,
    OWN, CROSS, COLUMN, COS, SIN, CHUNKS, POSITIONS, OVERFLOW, tokens,
    key_token, key_head, value_token, value_head, key_codes_page, key_pair_page, key_index_page,
    value_codes_page, value_pair_page, value_index_page, key_matrix_head, value_matrix_head,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, KEY_ORDER: tl.constexpr, VALUE_ORDER: tl.constexpr,
    KEY_NORM: tl.constexpr, VALUE_NORM: tl.constexpr, H: tl.constexpr, PAGE: tl.constexpr,
    KEY_C: tl.constexpr, VALUE_C: tl.constexpr, KEY_BOOKS: tl.constexpr, VALUE_BOOKS: tl.constexpr,
    PAIRS: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Codes and pairs are int32 words (16-bit values: themselves), which their ``*_page`` strides count. What is None
    is not there. TOGETHER comes with no dense matrix."""
    program = tl.program_id(0)
    first = 0
    if not TOGETHER:
        first = program % 2
        program = program // 2
    head = program % H
    token = program // H * ROWS + tl.arange(0, ROWS)
    inside = token < tokens
    # What is read is always there, so that no load but the tables' waits for another: rows beyond the end are the last.
    token = tl.minimum(token, tokens - 1).to(tl.int64)
    key = None
    value = None
    if TOGETHER:
        key = _words_of(KEY, key_token, key_head, token, head, KEY_CODEBOOK, OWN, LANES, N)
        value = _words_of(VALUE, value_token, value_head, token, head, VALUE_CODEBOOK, None, LANES, N)
    slot = tl.load(SLOTS + token)
    live = inside & (slot >= 0)
    slot = tl.where(live, slot, 0).to(tl.int32)  # a pool holds fewer than 2^31 tokens, if more bytes
    page = (slot // PAGE).to(tl.int64)
    slot %= PAGE
    # Constants stay out: in a tuple, Triton makes them values.
    keys = (
        (KEY, key_token, key_head, KEY_CODES, key_codes_page, KEY_PAIR, key_pair_page, KEY_PLANE, key_index_page),
        (KEY_INDEX, KEY_CODEBOOK, KEY_MATRIX, key_matrix_head, OWN, CROSS, COLUMN, COS, SIN, CHUNKS, POSITIONS),
    )  # fmt: skip
    values = (
        (VALUE, value_token, value_head, VALUE_CODES, value_codes_page, VALUE_PAIR, value_pair_page, VALUE_PLANE,
         value_index_page),
        (VALUE_INDEX, VALUE_CODEBOOK, VALUE_MATRIX, value_matrix_head, None, None, None, None, None, None, None),
    )  # fmt: skip
    if TOGETHER:
        _side(
            key, token, live, page, slot, head, keys, OVERFLOW, KEY_BITS, KEY_ORDER, KEY_NORM, H, PAGE,
            KEY_C, KEY_BOOKS, PAIRS, ROWS, LANES, N, FAST,
        )  # fmt: skip
        _side(
            value, token, live, page, slot, head, values, OVERFLOW, VALUE_BITS, VALUE_ORDER, VALUE_NORM, H,
            PAGE, VALUE_C, VALUE_BOOKS, PAIRS, ROWS, LANES, N, FAST,
        )  # fmt: skip
    elif first == 0:
        _side(
            None, token, live, page, slot, head, keys, OVERFLOW, KEY_BITS, KEY_ORDER, KEY_NORM, H, PAGE,
            KEY_C, KEY_BOOKS, PAIRS, ROWS, LANES, N, FAST,
        )  # fmt: skip
    else:
        _side(
            None, token, live, page, slot, head, values, OVERFLOW, VALUE_BITS, VALUE_ORDER, VALUE_NORM, H,
            PAGE, VALUE_C, VALUE_BOOKS, PAIRS, ROWS, LANES, N, FAST,
        )  # fmt: skip

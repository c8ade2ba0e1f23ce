"""dequantize_pages in Triton: tokens of pages back to the model's own keys or values, in a contiguous workspace."""

import triton
import triton.language as tl

from sawbench_kernels.hadamard.kernel import rotate
from sawbench_kernels.quantize_store.affine import split_pair
from sawbench_kernels.quantize_store.offset import offset
from sawbench_kernels.registers import join8, load_row, round16, split4


@triton.jit
def _unpack4(words, FIELD: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, mask):
    loaded = ()
    at = words + tl.arange(0, 4 * LANES)[None, :]
    for chunk in tl.static_range(FIELD // 8):
        loaded = loaded + split4(tl.load(at + chunk * 4 * LANES, mask=mask, other=0), ROWS, LANES)
    codes = ()
    for field in tl.static_range(4):
        for i in tl.static_range(FIELD // 2):
            low = loaded[i] >> 4 * field & 15
            codes = codes + (low, loaded[i] >> 4 * field + 16 & 15)
    return codes


@triton.jit
def _unpack8(words, N: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, mask):
    at = words + tl.arange(0, 2 * LANES)[None, :]
    codes = ()
    for chunk in tl.static_range(N // 8):
        pair = tl.load(at + chunk * 2 * LANES, mask=mask, other=0)
        low, high = tl.split(tl.reshape(pair, [ROWS, LANES, 2]))
        for byte in tl.static_range(4):
            codes = codes + (low >> 8 * byte & 255,)
        for byte in tl.static_range(4):
            codes = codes + (high >> 8 * byte & 255,)
    return codes


@triton.jit
def _stored_row(
    words, scale, zero, mask, BITS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    if BITS == 16:
        row = load_row(words, mask, ROWS, LANES, N)
    else:
        if BITS == 4:
            codes = _unpack4(words, N // 4, LANES, ROWS, mask)
        else:
            codes = _unpack8(words, N, LANES, ROWS, mask)
        row = ()
        for i in tl.static_range(N):
            row = row + (codes[i].to(tl.float32) * scale[:, None] + zero[:, None],)
    return row


@triton.jit
def _emit(x, out, dim, head, mask, factor, LOW, D: tl.constexpr):
    """``x`` [ROWS, M] at dimensions ``dim``, rounded, to OUT; what that leaves of it to columns D + LOW[head, dim]."""
    x = x * factor
    high = round16(x, out.dtype.element_ty) if out.dtype.element_ty != tl.float32 else x
    tl.store(out + dim[None, :], high, mask=mask)
    if LOW is not None:
        column = tl.load(LOW + head * D + dim, mask=dim < D, other=-1)[None, :]
        rest = round16(x - high.to(tl.float32), out.dtype.element_ty)
        tl.store(out + D + column, rest, mask=mask & (column >= 0))


@triton.jit
def _dense_back(words, scale, zero, dim, mask, MATRIX, BITS: tl.constexpr, D: tl.constexpr):
    """(codes * scale + zero) MATRIX^T, float32 [ROWS, DP], field by field of the head."""
    FIELD: tl.constexpr = D // 4
    W: tl.constexpr = triton.next_power_of_2(FIELD)
    w = tl.arange(0, W)[None, :]
    inside = mask & (w < FIELD)
    y = tl.zeros([scale.shape[0], dim.shape[0]], tl.float32)
    for field in tl.static_range(4):
        if BITS == 16:
            x = tl.load(words + field * FIELD + w, mask=inside, other=0.0).to(tl.float32)
        else:
            if BITS == 4:
                code = tl.load(words.to(tl.pointer_type(tl.int16)) + w, mask=inside, other=0).to(tl.int32)
                code = code >> 4 * field & 15
            else:
                code = tl.load(words.to(tl.pointer_type(tl.uint8)) + field * FIELD + w, mask=inside, other=0)
            x = tl.where(inside, code.to(tl.float32) * scale[:, None] + zero[:, None], 0.0)
        back = MATRIX + dim[None, :] * D + field * FIELD + tl.arange(0, W)[:, None]
        there = (dim < D)[None, :] & (tl.arange(0, W) < FIELD)[:, None]
        y = tl.dot(x, tl.load(back, mask=there, other=0.0), y, input_precision="tf32x3")
    return y


@triton.jit(do_not_specialize=["tokens"])
def dequantize_kernel(
    CODES, PAIR, PLANE, SLOTS, POSITIONS, CODEBOOK, MATRIX, OWN, CROSS, COLUMN, COS, SIN, LOW, OUT,
    tokens, first_head, factor, codes_page, pair_page, index_page, matrix_head, out_token, out_head,
    BITS: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr, H: tl.constexpr, PAGE: tl.constexpr,
    C: tl.constexpr, BOOKS: tl.constexpr, PAIRS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Program (i, h): ROWS tokens of KV head ``first_head + h``. Units as in the store kernel; what is None is not
    there."""
    D: tl.constexpr = N * LANES
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = first_head + tl.program_id(1)
    live = token < tokens
    token = token.to(tl.int64)
    slot = tl.load(SLOTS + token, mask=live, other=0)
    page = slot // PAGE
    within = head * PAGE + slot % PAGE
    mask = live[:, None]
    words = CODES + (page * codes_page + within * (D if BITS == 16 else D * BITS // 32))[:, None]
    scale = tl.full([ROWS], 1.0, tl.float32)
    zero = tl.zeros([ROWS], tl.float32)
    if BITS < 16:
        scale, zero = split_pair(tl.load(PAIR + page * pair_page + within, mask=live, other=0))
    centroid = token * 0 + head * C
    if PLANE is not None:
        at = PLANE + page * index_page + head // (H // BOOKS) * PAGE + slot % PAGE
        centroid += tl.load(at, mask=live, other=0).to(tl.int64)
    place = token * 0
    if OWN is not None:
        place = tl.load(POSITIONS + token, mask=live, other=0)
    out = OUT + (token * out_token + tl.program_id(1).to(tl.int64) * out_head)[:, None]
    if MATRIX is not None:
        dim = tl.arange(0, triton.next_power_of_2(D))
        x = _dense_back(words, scale, zero, dim, mask, MATRIX + head * matrix_head, BITS, D)
        inside = mask & (dim < D)[None, :]
        middle, turned = offset(
            x, dim, head, centroid, place, inside, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN, D, PAIRS
        )  # fmt: skip
        _emit(x + middle + turned, out, dim, head, inside, factor, LOW, D)
    else:
        row = _stored_row(words, scale, zero, mask, BITS, ROWS, LANES, N)
        if ORDER > 1:
            row = rotate(row, ROWS, LANES, N, ORDER, NORM)
        for chunk in tl.static_range(N // 8):
            dim = chunk * 8 * LANES + tl.arange(0, 8 * LANES)
            x = join8(row, chunk * 8, ROWS, LANES)
            middle, turned = offset(
                x, dim, head, centroid, place, mask, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN, D, PAIRS
            )  # fmt: skip
            _emit(x + middle + turned, out, dim, head, mask, factor, LOW, D)

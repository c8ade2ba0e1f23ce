"""Split-KV flash decoding over quantized pages: one program reads one item, a run of tiles of one sequence and KV head.

Keys are the left operand of the score product and values (turned) of the output product, so that the short axis of
the matrix instruction, 8 columns, holds the query heads of a KV head: half the arithmetic of the usual orientation,
and packed words go from shared memory straight into operand registers, where one AND expands two codes. One warp is a
program: softmax statistics never cross warps and no barrier waits for another warp.

Scores are kept in units of log2: ``score * softmax scale * log2(e)``.
"""

import triton
import triton.language as tl

from sawbench_kernels.paged_decode.schedule import chunk_size, find_item
from sawbench_kernels.paged_decode.slices import code_slice, exp2, slice_dims, slice_weight, unpair

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _butterfly(x, SLICES: tl.constexpr, SPAN: tl.constexpr):
    """Hadamard over groups of SPAN neighbouring slices of the tuple ``x``."""
    if SLICES == 2:
        y = (x[0] + x[1], x[0] - x[1])
    else:
        y = (x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3])
        if SPAN == 4:
            y = (y[0] + y[2], y[1] + y[3], y[0] - y[2], y[1] - y[3])
    return y


@triton.jit
def _query(Q, stride_head, ROTATION, BITS: tl.constexpr, D: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
           G: tl.constexpr, NC: tl.constexpr, ORDER: tl.constexpr, SPAN: tl.constexpr, WIDE: tl.constexpr):
    """Slices of the query, rotated: a tuple of float32 [WP, NC]."""
    w = tl.arange(0, WP)
    column = tl.arange(0, NC)
    x = ()
    for i in tl.static_range(16 // BITS):
        at = Q + column[None, :] * stride_head + slice_dims(i, w, BITS, W)[:, None]
        part = tl.load(at, mask=(w < W)[:, None] & (column < G)[None, :], other=0.0)
        if ORDER > 1:
            # Entries are +-1: exact in the query's own dtype, so the products are too.
            signs = tl.load(ROTATION + w[:, None] * WP + w[None, :])
            if WIDE:
                part = tl.dot(signs.to(tl.float32), part.to(tl.float32), input_precision="ieee")
            else:
                part = tl.dot(signs.to(part.dtype), part)
        x = x + (part.to(tl.float32) * (ORDER**-0.5),)
    if SPAN > 1:
        x = _butterfly(x, 16 // BITS, SPAN)
    return x


@triton.jit
def _bias_coefficients(Q, stride_head, DIMS, COEFFICIENTS, scale, R2: tl.constexpr, G: tl.constexpr, NC: tl.constexpr):
    """(X, Y) float32 [R2, NC]: rows of cosine then sine amplitudes of the bias term, and their quarter turn."""
    row = tl.arange(0, R2)
    column = tl.arange(0, NC)
    live = (column < G)[None, :]
    first = tl.load(DIMS + 2 * row)[:, None]
    second = tl.load(DIMS + 2 * row + 1)[:, None]
    u = tl.load(COEFFICIENTS + 2 * row)[:, None] * scale
    v = tl.load(COEFFICIENTS + 2 * row + 1)[:, None] * scale
    a = tl.load(Q + column[None, :] * stride_head + first, mask=live, other=0.0).to(tl.float32)
    b = tl.load(Q + column[None, :] * stride_head + second, mask=live, other=0.0).to(tl.float32)
    return a * u + b * v, b * u - a * v


@triton.jit
def _halves(x, WIDE: tl.constexpr):
    """float32 as bf16 high + low (the interpreter keeps float32 and a zero)."""
    if WIDE:
        high, low = x, x * 0.0
    else:
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
    return high, low


@triton.jit(do_not_specialize=["B", "target", "stride_table"])
def decode_kernel(
    Q, RAW, ROTATION, KEY, KEY_PAIR, VALUE, VALUE_PAIR, TABLE, LENGTHS, PART, LSE,
    BIAS_DIMS, BIAS_COEFFICIENTS, BIAS_PAIR, BIAS_FINE, BIAS_COARSE,
    KEY_INDEX, KEY_SCORES, VALUE_INDEX, PART_WEIGHTS,
    B, target, scale,
    stride_q, stride_q_head, stride_raw, stride_raw_head, stride_table,
    stride_key, stride_key_pair, stride_value, stride_value_pair, stride_key_index, stride_value_index,
    coarse_pairs,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    KB: tl.constexpr, VB: tl.constexpr, ORDER: tl.constexpr, SPAN: tl.constexpr,
    R2: tl.constexpr, CK: tl.constexpr, CV: tl.constexpr, KEY_BOOKS: tl.constexpr, VALUE_BOOKS: tl.constexpr,
    TILE: tl.constexpr, NC: tl.constexpr, STAGES: tl.constexpr, LEAST: tl.constexpr, COARSE: tl.constexpr, FINE: tl.constexpr,
    FAST: tl.constexpr, WIDE: tl.constexpr,
):
    item = tl.program_id(0)
    h = tl.program_id(1)
    chunk = chunk_size(LENGTHS, B, target, TILE, LEAST, 128)
    b, index = find_item(LENGTHS, B, item, chunk, TILE, 128)
    if b >= B:
        return
    length = tl.load(LENGTHS + b).to(tl.int32)
    tiles = tl.cdiv(length, TILE)
    per = tl.cdiv(tiles, tl.cdiv(tiles, chunk))
    first = index * per
    last = tl.minimum(first + per, tiles)

    KW: tl.constexpr = D * KB // 16
    VW: tl.constexpr = D * VB // 16
    KWP: tl.constexpr = triton.next_power_of_2(KW)
    VWP: tl.constexpr = triton.next_power_of_2(VW)
    KDT: tl.constexpr = tl.float32 if WIDE else (tl.float16 if KB < 16 else KEY.dtype.element_ty)
    VDT: tl.constexpr = tl.float32 if WIDE else (tl.bfloat16 if VB < 16 else VALUE.dtype.element_ty)
    CVP: tl.constexpr = max(256, CV)
    token = tl.arange(0, TILE)
    kw = tl.arange(0, KWP)
    vw = tl.arange(0, VWP)
    column = tl.arange(0, NC)

    head_q = Q + b.to(tl.int64) * stride_q + h * G * stride_q_head
    x = _query(head_q, stride_q_head, ROTATION, KB, D, KW, KWP, G, NC, ORDER, SPAN, WIDE)
    unit = scale * LOG2E
    if KB < 16:
        # One power of two brings the largest entry under 2^15, so that fp16 neither overflows nor loses bits.
        entry = tl.max(tl.abs(x[0]))
        for i in tl.static_range(1, 16 // KB):
            entry = tl.maximum(entry, tl.max(tl.abs(x[i])))
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(entry, 1e-30))) - 14.0)
        unit *= power
        x_scale = 1.0 / power
    else:
        x_scale = 1.0
    q = ()
    q_sum = tl.zeros([NC], tl.float32)
    for i in tl.static_range(16 // KB):
        rounded = (x[i] * x_scale).to(KDT)
        q_sum += tl.sum(rounded.to(tl.float32), 0)
        q = q + ((rounded * slice_weight(i, KB, FAST)).to(KDT),)
    q_sum *= unit
    if FAST and KB < 16:
        unit *= 16777216.0  # 2^24: a code n is the subnormal n * 2^-24

    if R2:
        head_raw = RAW + b.to(tl.int64) * stride_raw + h * G * stride_raw_head
        bias_x, bias_y = _bias_coefficients(
            head_raw, stride_raw_head, BIAS_DIMS + h * 2 * R2, BIAS_COEFFICIENTS + h * 2 * R2, scale * LOG2E, R2, G, NC
        )
        r = tl.arange(0, R2)
        bias_pair = tl.load(BIAS_PAIR + h * R2 + r)
        fine_at = BIAS_FINE + (h * 2 * FINE + token[:, None]) * R2 + r[None, :]
        if R2 <= 16:
            fine_high = tl.load(fine_at)
            fine_low = tl.load(fine_at + FINE * R2)

    acc = ()
    for i in tl.static_range(16 // VB):
        acc = acc + (tl.zeros([VWP, NC], tl.float32),)
    if CV:
        high_bits = tl.arange(0, CVP // 16)
        low_bits = tl.arange(0, 16)
        weights = tl.zeros([CVP // 16, 16 * NC], tl.float32)
    m = tl.full([NC], -float("inf"), tl.float32)
    total = tl.zeros([NC], tl.float32)
    offset = tl.zeros([NC], tl.float32)

    for t in tl.range(first, last, num_stages=STAGES):
        position = t * TILE + token
        valid = position < length
        if PAGE >= TILE:
            page = tl.load(TABLE + b * stride_table + (t * TILE) // PAGE).to(tl.int64)
            within = (t * TILE) % PAGE + token
        else:
            page = tl.load(TABLE + b * stride_table + position // PAGE, mask=valid, other=0).to(tl.int64)
            within = position % PAGE
        line = h * PAGE + within
        if PAGE >= TILE:
            key_at = KEY + page * stride_key + line[:, None] * KW + kw[None, :]
            value_at = VALUE + page * stride_value + line[None, :] * VW + vw[:, None]
        else:
            key_at = KEY + (page * stride_key + line * KW)[:, None] + kw[None, :]
            value_at = VALUE + (page * stride_value + line * VW)[None, :] + vw[:, None]
        if KWP == KW:
            key = tl.load(key_at)
        else:
            key = tl.load(key_at, mask=(kw < KW)[None, :], other=0)
        if VB == 16:
            value = tl.load(value_at, mask=valid[None, :] & (vw < VW)[:, None], other=0.0)
        elif VWP == VW:
            value = tl.load(value_at)
        else:
            value = tl.load(value_at, mask=(vw < VW)[:, None], other=0)

        score = tl.dot(code_slice(key, 0, KB, FAST, KDT), q[0], input_precision="ieee")
        for i in tl.static_range(1, 16 // KB):
            score = tl.dot(code_slice(key, i, KB, FAST, KDT), q[i], score, input_precision="ieee")
        if KB < 16:
            key_pair = tl.load(KEY_PAIR + page * stride_key_pair + line, mask=valid, other=0)
            key_scale, key_min = unpair(key_pair, FAST)
            score = score * (key_scale * unit)[:, None] + key_min[:, None] * q_sum[None, :]
        else:
            score = score * unit
        if R2:
            coarse_at = BIAS_COARSE + ((t * TILE // COARSE) * coarse_pairs + bias_pair) * 2
            turned = bias_x * tl.load(coarse_at)[:, None] + bias_y * tl.load(coarse_at + 1)[:, None]
            if R2 > 16:
                fine_high = tl.load(fine_at)
                fine_low = tl.load(fine_at + FINE * R2)
            turned_high, turned_low = _halves(turned, WIDE)
            bias_score = tl.dot(fine_high.to(turned_high.dtype), turned_low, input_precision="ieee")
            bias_score = tl.dot(fine_low.to(turned_high.dtype), turned_high, bias_score, input_precision="ieee")
            score += tl.dot(fine_high.to(turned_high.dtype), turned_high, bias_score, input_precision="ieee")
        if CK:
            index_at = KEY_INDEX + page * stride_key_index + (h // (H // KEY_BOOKS)) * PAGE + within
            nearest = tl.load(index_at, mask=valid, other=0).to(tl.int32)
            score_at = KEY_SCORES + ((b * H + h) * CK + nearest)[:, None] * G + column[None, :]
            score += tl.load(score_at, mask=(column < G)[None, :], other=0.0) * (scale * LOG2E)
        score = tl.where(valid[:, None], score, -float("inf"))

        largest = tl.maximum(m, tl.max(score, 0))
        shrink = exp2(m - largest, FAST)
        p = exp2(score - largest[None, :], FAST)
        m = largest
        total = total * shrink + tl.sum(p, 0)
        if VB < 16:
            value_pair = tl.load(VALUE_PAIR + page * stride_value_pair + line, mask=valid, other=0)
            value_scale, value_min = unpair(value_pair, FAST)
            offset = offset * shrink + tl.sum(p * value_min[:, None], 0)
            if FAST:
                value_scale *= 1.2676506002282294e30  # 2^100: a code n is the subnormal n * 2^-133
            p_value = (p * value_scale[:, None]).to(VDT)
        else:
            p_value = p.to(VDT)
        new = ()
        for i in tl.static_range(16 // VB):
            new = new + (
                tl.dot(code_slice(value, i, VB, FAST, VDT), p_value, acc[i] * shrink[None, :], input_precision="ieee"),
            )
        acc = new
        if CV:
            # A histogram without atomics: one-hot of the index's high bits times (one-hot of its low bits x p).
            value_index_at = VALUE_INDEX + page * stride_value_index + (h // (H // VALUE_BOOKS)) * PAGE + within
            centroid = tl.load(value_index_at, mask=valid, other=0).to(tl.int32)
            low = tl.where((centroid % 16)[:, None, None] == low_bits[None, :, None], p[:, None, :], 0.0)
            low = tl.reshape(low, [TILE, 16 * NC])
            high = (centroid // 16)[None, :] == high_bits[:, None]
            shrunk = tl.reshape(tl.broadcast_to(shrink[None, :], [16, NC]), [16 * NC])
            weights = tl.dot(high.to(VDT), low.to(VDT), weights * shrunk[None, :], input_precision="ieee")

    live = (column < G)[None, :]
    row = (item * H + h) * G + column
    tl.store(LSE + row, m + tl.log2(total), mask=column < G)
    for i in tl.static_range(16 // VB):
        out = acc[i]
        if VB < 16:
            if FAST:
                out *= 8589934592.0 * slice_weight(i, VB, FAST)  # 2^33 = 2^(133 - 100)
            out += offset[None, :]
        at = PART + row.to(tl.int64)[None, :] * D + slice_dims(i, vw, VB, VW)[:, None]
        tl.store(at, out / total[None, :], mask=live & (vw < VW)[:, None])
    if CV:
        lane = tl.arange(0, 16 * NC)
        centroid = high_bits[:, None] * 16 + (lane // NC)[None, :]
        head = (lane % NC)[None, :]
        at = PART_WEIGHTS + ((item * H + h) * G + head).to(tl.int64) * CV + centroid
        divisor = tl.reshape(tl.broadcast_to(total[None, :], [16, NC]), [16 * NC])
        tl.store(at, weights / divisor[None, :], mask=(head < G) & (centroid < CV))

"""Split-KV flash decoding over quantized pages: one program reads one share of the tiles of one KV head.

Keys are the left operand of the score product and values (turned) of the output product, so that the short axis of
the matrix instruction, 8 columns, holds the query heads of a KV head: half the arithmetic of the usual orientation,
and packed words go from shared memory straight into operand registers, where one AND expands two codes. One warp is a
program (two, where registers run out): softmax statistics do not cross warps and no barrier waits for another warp.

Scores are kept in units of log2: ``score * softmax scale * log2(e)``.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from sawbench_kernels.paged_decode.schedule import locate, share_of, tiles_before
from sawbench_kernels.paged_decode.slices import code_slice, equal, exp2, slice_dims, slice_weight, unpair

LOG2E = tl.constexpr(1.4426950408889634)
BLOCK = tl.constexpr(128)  # sequences that the schedule looks at in one go
P_UNIT = tl.constexpr(32768.0)  # the largest probability x scale, as fp16


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
def _rotated_query(
    Q, stride_head, SIGNS, BITS: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, G: tl.constexpr,
    NC: tl.constexpr, ORDER: tl.constexpr, SPAN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Slices of the query, rotated: a tuple of float32 [WP, NC]."""
    w = tl.arange(0, WP)
    column = tl.arange(0, NC)
    loaded = ()  # all loads before any product: their latencies overlap
    for i in tl.static_range(16 // BITS):
        at = Q + column[None, :] * stride_head + slice_dims(i, w, BITS, W)[:, None]
        loaded = loaded + (tl.load(at, mask=(w < W)[:, None] & (column < G)[None, :], other=0.0),)
    if ORDER > 1:
        signs = tl.load(SIGNS + w[:, None] * WP + w[None, :])
    x = ()
    for i in tl.static_range(16 // BITS):
        part = loaded[i]
        if ORDER > 1:
            # Entries are +-1: exact in the query's own dtype, so the products are too.
            if WIDE:
                part = tl.dot(signs.to(tl.float32), part.to(tl.float32), input_precision="ieee")
            else:
                part = tl.dot(signs.to(part.dtype), part)
        x = x + (part.to(tl.float32) * (ORDER**-0.5),)
    if SPAN > 1:
        x = _butterfly(x, 16 // BITS, SPAN)
    return x


@triton.jit
def _query_operand(x, BITS: tl.constexpr, NC: tl.constexpr, FAST: tl.constexpr, DT: tl.constexpr):
    """(slices as matrix operands, their sum over dimensions [NC], what a score must be multiplied by).

    Below 16 bits one power of two brings the largest entry under 2^15, so that fp16 neither overflows nor loses bits.
    """
    power = 1.0
    if BITS < 16:
        largest = tl.max(tl.abs(x[0]))
        for i in tl.static_range(1, 16 // BITS):
            largest = tl.maximum(largest, tl.max(tl.abs(x[i])))
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))) - 14.0)
    q = ()
    total = tl.zeros([NC], tl.float32)
    for i in tl.static_range(16 // BITS):
        rounded = (x[i] * (1.0 / power)).to(DT)
        total += tl.sum(rounded.to(tl.float32), 0)
        q = q + ((rounded * slice_weight(i, BITS, FAST)).to(DT),)
    return q, total, power


@triton.jit
def _bias_amplitudes(
    Q, stride_head, DIMS, COEFFICIENTS, scale, R2: tl.constexpr, G: tl.constexpr, NC: tl.constexpr
):  # fmt: skip
    """(X, Y), tuples of float32 [16, NC]: cosine then sine amplitudes of the bias term, and their quarter turn."""
    column = tl.arange(0, NC)
    live = (column < G)[None, :]
    x = ()
    y = ()
    for c in tl.static_range(R2 // 16):
        row = 2 * (16 * c + tl.arange(0, 16))
        first = tl.load(DIMS + row)[:, None]
        second = tl.load(DIMS + row + 1)[:, None]
        u = tl.load(COEFFICIENTS + row)[:, None] * scale
        v = tl.load(COEFFICIENTS + row + 1)[:, None] * scale
        a = tl.load(Q + column[None, :] * stride_head + first, mask=live, other=0.0).to(tl.float32)
        b = tl.load(Q + column[None, :] * stride_head + second, mask=live, other=0.0).to(tl.float32)
        x = x + (a * u + b * v,)
        if R2 == 16:
            y = y + (b * u - a * v,)
    if R2 > 16:
        # Cosine rows are the first half: a quarter turn of them is the second, and of that the first, negated.
        for c in tl.static_range(R2 // 32):
            y = y + (x[c + R2 // 32],)
        for c in tl.static_range(R2 // 32):
            y = y + (-x[c],)
    return x, y


@triton.jit
def _bias_turn(COARSE_TABLE, coarse_pairs, pair, position, COARSE: tl.constexpr):
    """(cos, sin) float32 [16]: the turns of 16 pairs at ``position``."""
    at = COARSE_TABLE + (position // COARSE * coarse_pairs + pair) * 2
    return tl.load(at), tl.load(at + 1)


@triton.jit
def _bias_table(FINE_TABLE, c: tl.constexpr, TILE: tl.constexpr, R2: tl.constexpr, FINE: tl.constexpr):
    """(high, low) bf16 [TILE, 16]: cos and sin at the places of a tile, of the c-th 16 rows."""
    at = FINE_TABLE + tl.arange(0, TILE)[:, None] * R2 + (16 * c + tl.arange(0, 16))[None, :]
    return tl.load(at), tl.load(at + FINE * R2)


@triton.jit
def _bias_scores(x, y, cos, sin, high, low, out, WIDE: tl.constexpr):
    """``out`` plus the scores of 16 rows: amplitudes turned to the tile's first position, times its table.

    Three products of bf16 halves: logits beyond 1,000 leave no room for a bf16 or TF32 product (errors of 8.5e-2 and
    1.1e-2 of the output).
    """
    turned = x * cos[:, None] + y * sin[:, None]
    if WIDE:
        out = tl.dot(high.to(tl.float32) + low.to(tl.float32), turned, out, input_precision="ieee")
    else:
        turned_high = turned.to(tl.bfloat16)
        turned_low = (turned - turned_high.to(tl.float32)).to(tl.bfloat16)
        out = tl.dot(high, turned_low, out)
        out = tl.dot(low, turned_high, out)
        out = tl.dot(high, turned_high, out)
    return out


@triton.jit
def _centroids(INDEX, SHIFTS, line, valid, TILE: tl.constexpr, BITS: tl.constexpr):
    """Centroid indices [TILE] at lines ``line`` of a page's codebook, out of 32-bit words; 0 beyond the sequence's end.

    ``SHIFTS``: see :func:`.slices.equal` for why a constant comes from memory.
    """
    word = tl.load(INDEX + line // (32 // BITS), mask=valid, other=0)
    return (word >> tl.load(SHIFTS + tl.arange(0, TILE))) & ((1 << BITS) - 1)


@triton.jit
def _load(at, inside, MASKED: tl.constexpr):
    if MASKED:
        loaded = tl.load(at, mask=inside, other=0)
    else:
        loaded = tl.load(at)
    return loaded


@triton.jit
def _scaled(p, scale, top, DT: tl.constexpr):
    """(probabilities x scale of a value in fp16, what earlier sums must be multiplied by, largest scale so far).

    Relative to the largest scale, as p is to the largest score: bf16 would err by 3e-3 of the output, and plain fp16
    overflow. Where the scale stays, the factor is exactly 1: a quotient's last bit, a thousand times over, is not.
    """
    larger = tl.maximum(top, tl.max(scale))
    ratio = tl.where(larger > top, top / larger, 1.0)
    return (p * (scale * (P_UNIT / larger))[:, None]).to(DT), ratio, larger


@triton.jit(do_not_specialize=["B", "stride_table"])
def decode_kernel(
    Q, RAW, SIGNS, KEY, KEY_PAIR, VALUE, VALUE_PAIR, TABLE, LENGTHS, PART, LSE,
    BIAS_DIMS, BIAS_COEFFICIENTS, BIAS_PAIR, BIAS_FINE, BIAS_COARSE,
    KEY_INDEX, KEY_SCORES, VALUE_INDEX, SHIFTS, NUMBERS, PART_CENTROIDS,
    B, scale,
    stride_q, stride_q_head, stride_raw, stride_raw_head, stride_table,
    stride_key, stride_key_pair, stride_value, stride_value_pair, stride_key_index, stride_value_index,
    coarse_pairs,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    KB: tl.constexpr, VB: tl.constexpr, ORDER: tl.constexpr, SPAN: tl.constexpr,
    R2: tl.constexpr, CK: tl.constexpr, CV: tl.constexpr, KEY_BOOKS: tl.constexpr, VALUE_BOOKS: tl.constexpr,
    KEY_INDEX_BITS: tl.constexpr, VALUE_INDEX_BITS: tl.constexpr, GATHERS: tl.constexpr,
    TILE: tl.constexpr, NC: tl.constexpr, STAGES: tl.constexpr, LEAST: tl.constexpr,
    COARSE: tl.constexpr, FINE: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr,
    WAITS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    h = tl.program_id(1)
    total_tiles = tiles_before(LENGTHS, B, TILE, BLOCK)
    share = share_of(total_tiles, tl.num_programs(0), LEAST)
    left = tl.minimum(share, total_tiles - program * share)
    b, first = locate(LENGTHS, B, program * share, TILE, BLOCK)

    KW: tl.constexpr = D * KB // 16
    VW: tl.constexpr = D * VB // 16
    KWP: tl.constexpr = triton.next_power_of_2(KW)
    VWP: tl.constexpr = triton.next_power_of_2(VW)
    KDT: tl.constexpr = tl.float32 if WIDE else (tl.float16 if KB < 16 else KEY.dtype.element_ty)
    VDT: tl.constexpr = tl.float32 if WIDE else (tl.float16 if VB < 16 else VALUE.dtype.element_ty)
    WDT: tl.constexpr = tl.float32 if WIDE else tl.float16
    GDT: tl.constexpr = tl.float32 if WIDE else tl.bfloat16
    CODE_UNIT: tl.constexpr = 16777216.0 if FAST else 1.0  # 2^24: a code n is the fp16 subnormal n * 2^-24
    # What is summed of the values' centroids: a probability for each or, where they are many, the centroids.
    CW: tl.constexpr = D if GATHERS else CV
    CWP: tl.constexpr = max(16, triton.next_power_of_2(CW))
    token = tl.arange(0, TILE)
    kw = tl.arange(0, KWP)
    vw = tl.arange(0, VWP)
    column = tl.arange(0, NC)
    live = (column < G)[None, :]
    fine_table = BIAS_FINE + h * 2 * FINE * R2
    # Read once, the tables of a bias stay in shared memory: once a tile they would be more bytes than K and V.
    fine_high = ()
    fine_low = ()
    pairs = ()
    for c in tl.static_range(R2 // 16):
        high, low = _bias_table(fine_table, c, TILE, R2, FINE)
        fine_high = fine_high + (high,)
        fine_low = fine_low + (low,)
        pairs = pairs + (tl.load(BIAS_PAIR + h * R2 + 16 * c + tl.arange(0, 16)),)

    while left > 0:
        length = tl.load(LENGTHS + b).to(tl.int32)
        last = tl.minimum(tl.cdiv(length, TILE), first + left)
        row_table = TABLE + b * stride_table
        if WAITS:
            gdc_wait()  # a product before this kernel made Q or KEY_SCORES
        head_q = Q + b.to(tl.int64) * stride_q + h * G * stride_q_head
        x = _rotated_query(head_q, stride_q_head, SIGNS, KB, KW, KWP, G, NC, ORDER, SPAN, WIDE)
        q, q_sum, power = _query_operand(x, KB, NC, FAST, KDT)
        unit = power * scale * LOG2E
        q_sum *= unit
        if KB < 16:
            unit *= CODE_UNIT
        if R2:
            head_raw = RAW + b.to(tl.int64) * stride_raw + h * G * stride_raw_head
            bias_x, bias_y = _bias_amplitudes(
                head_raw, stride_raw_head, BIAS_DIMS + h * 2 * R2, BIAS_COEFFICIENTS + h * 2 * R2,
                scale * LOG2E, R2, G, NC,
            )  # fmt: skip
            if R2 == 16:
                cos, sin = _bias_turn(BIAS_COARSE, coarse_pairs, pairs[0], first * TILE, COARSE)

        acc = ()
        for _ in tl.static_range(16 // VB):
            acc = acc + (tl.zeros([VWP, NC], tl.float32),)
        if CV:
            centroids = tl.zeros([CWP, NC], tl.float32)
        m = tl.full([NC], -float("inf"), tl.float32)
        total = tl.zeros([NC], tl.float32)
        offset = tl.zeros([NC], tl.float32)
        top_scale = 5.9604645e-08  # 2^-24, the least fp16
        for t in tl.range(first, last, num_stages=STAGES):
            position = t * TILE + token
            valid = position < length
            if PAGE >= TILE:
                page = tl.load(row_table + (t * TILE) // PAGE).to(tl.int64)
                within = (t * TILE) % PAGE + token
                line = h * PAGE + within
                key_at = KEY + page * stride_key + line[:, None] * KW + kw[None, :]
                value_at = VALUE + page * stride_value + line[None, :] * VW + vw[:, None]
            else:
                page = tl.load(row_table + position // PAGE, mask=valid, other=0).to(tl.int64)
                within = position % PAGE
                line = h * PAGE + within
                key_at = KEY + (page * stride_key + line * KW)[:, None] + kw[None, :]
                value_at = VALUE + (page * stride_value + line * VW)[None, :] + vw[:, None]
            key = _load(key_at, (kw < KW)[None, :], KWP > KW)
            # Codes are finite whatever the bytes, and meet probability 0; raw values could be NaN.
            inside = (vw < VW)[:, None] & (valid[None, :] | (VB < 16))
            value = _load(value_at, inside, VB == 16 or VWP > VW)

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
                bias = tl.zeros([TILE, NC], tl.float32)
                if R2 == 16:
                    bias = _bias_scores(bias_x[0], bias_y[0], cos, sin, fine_high[0], fine_low[0], bias, WIDE)
                    # The next tile's turns are fetched a tile ahead: nothing else hides their latency.
                    cos, sin = _bias_turn(BIAS_COARSE, coarse_pairs, pairs[0], (t + 1) * TILE, COARSE)
                else:
                    HALF: tl.constexpr = R2 // 32
                    for c in tl.static_range(HALF):
                        cos, sin = _bias_turn(BIAS_COARSE, coarse_pairs, pairs[c], t * TILE, COARSE)
                        u = bias_x[c]
                        v = bias_x[c + HALF]
                        bias = _bias_scores(u, v, cos, sin, fine_high[c], fine_low[c], bias, WIDE)
                        bias = _bias_scores(v, u, cos, -sin, fine_high[c + HALF], fine_low[c + HALF], bias, WIDE)
                score += bias
            if CK:
                book = KEY_INDEX + page * stride_key_index
                book_line = h // (H // KEY_BOOKS) * PAGE + within
                nearest = _centroids(book, SHIFTS, book_line, valid, TILE, KEY_INDEX_BITS)
                score_at = KEY_SCORES + (b * H + h) * CK * NC + nearest[:, None] * NC + column[None, :]
                score += tl.load(score_at) * (scale * LOG2E)
            score = tl.where(valid[:, None], score, -float("inf"))

            largest = tl.maximum(m, tl.max(score, 0))
            shrink = exp2(m - largest, FAST)
            p = exp2(score - largest[None, :], FAST)
            m = largest
            total = total * shrink + tl.sum(p, 0)
            shrink_value = shrink
            if VB < 16:
                value_pair = tl.load(VALUE_PAIR + page * stride_value_pair + line, mask=valid, other=0)
                value_scale, value_min = unpair(value_pair, FAST)
                offset = offset * shrink + tl.sum(p * value_min[:, None], 0)
                p_value, ratio, top_scale = _scaled(p, value_scale, top_scale, VDT)
                shrink_value = shrink * ratio
            else:
                p_value = p.to(VDT)
            new = ()
            for i in tl.static_range(16 // VB):
                # Each tile's product starts from zero: the matrix unit truncates, and over a long context that adds up.
                part = tl.dot(code_slice(value, i, VB, FAST, VDT), p_value, input_precision="ieee")
                new = new + (tl.fma(acc[i], tl.broadcast_to(shrink_value[None, :], [VWP, NC]), part),)
            acc = new
            if CV:
                book = VALUE_INDEX + page * stride_value_index
                book_line = h // (H // VALUE_BOOKS) * PAGE + within
                nearest = _centroids(book, SHIFTS + FINE, book_line, valid, TILE, VALUE_INDEX_BITS)
                place = tl.arange(0, CWP)[:, None]
                if GATHERS:
                    rows = tl.load(NUMBERS + (h * CV + nearest)[None, :] * D + place, mask=place < D, other=0.0)
                    part = tl.dot(rows.to(GDT), p.to(GDT), input_precision="ieee")
                    centroids = tl.fma(centroids, tl.broadcast_to(shrink[None, :], [CWP, NC]), part)
                else:
                    # A histogram without atomics: the one-hot matrix of the tokens' centroids times p.
                    one_hot = equal(tl.load(NUMBERS + tl.arange(0, CWP))[:, None], nearest[None, :], FAST, WDT)
                    centroids = tl.dot(one_hot, p.to(WDT), centroids * shrink[None, :], input_precision="ieee")

        total = tl.maximum(total, 1e-30)  # an empty sequence leaves a segment that no one reads
        row = ((program + b) * H + h) * G + column
        tl.store(LSE + row, m + tl.log2(total), mask=column < G)
        for i in tl.static_range(16 // VB):
            out = acc[i]
            if VB < 16:
                out *= top_scale * (CODE_UNIT / P_UNIT) * slice_weight(i, VB, FAST)
            at = PART + row.to(tl.int64)[None, :] * D + slice_dims(i, vw, VB, VW)[:, None]
            tl.store(at, (out + offset[None, :]) / total[None, :], mask=live & (vw < VW)[:, None])
        if CV:
            place = tl.arange(0, CWP)[:, None]
            at = PART_CENTROIDS + row.to(tl.int64)[None, :] * CW + place
            tl.store(at, centroids / total[None, :], mask=live & (place < CW))
        left -= last - first
        first = 0
        b += 1

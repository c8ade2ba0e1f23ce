"""Attention over disjoint runs of keys, weighted by their sums of exponentials, to one output."""

import triton
import triton.language as tl

from sawbench_kernels.registers import round16


@triton.jit
def merge_kernel(
    PARTS, SUMS, OUT, tokens, factor, part_token, part_head, sum_head, out_token, out_head,
    COUNT: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (i, h): ROWS tokens of query head h.

    PARTS: a tuple of COUNT tensors [H, T, D], their strides in the tuples ``part_token`` and ``part_head``; SUMS: of
    log-sum-exp float32 [H, T]. OUT is ``factor`` times the weighted mean.
    """
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    here = token < tokens
    d = tl.arange(0, triton.next_power_of_2(D))
    mask = here[:, None] & (d < D)[None, :]
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    for i in tl.static_range(COUNT):
        largest = tl.maximum(largest, tl.load(SUMS[i] + head * sum_head[i] + token, mask=here, other=0.0))
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, d.shape[0]], tl.float32)
    wide = token.to(tl.int64)[:, None]
    for i in tl.static_range(COUNT):
        weight = tl.exp(tl.load(SUMS[i] + head * sum_head[i] + token, mask=here, other=0.0) - largest)
        part = tl.load(PARTS[i] + head * part_head[i] + wide * part_token[i] + d[None, :], mask=mask, other=0.0)
        mean += weight[:, None] * part.to(tl.float32)
        total += weight
    at = OUT + wide * out_token + head * out_head + d[None, :]
    tl.store(at, round16(mean * (factor / total)[:, None], OUT.dtype.element_ty), mask=mask)

"""Attention over disjoint runs of keys, weighted by their sums of exponentials, to one output."""

import triton
import triton.language as tl

from sawbench_kernels.registers import round16


@triton.jit
def _largest(largest, SUM, sum_head, head, token, here):
    if SUM is None:
        return largest
    else:
        return tl.maximum(largest, tl.load(SUM + head * sum_head + token, mask=here, other=0.0))


@triton.jit
def _added(mean, total, largest, PART, SUM, part_token, part_head, sum_head, head, token, here, mask, d):
    if SUM is None:
        return mean, total
    else:
        weight = tl.exp(tl.load(SUM + head * sum_head + token, mask=here, other=0.0) - largest)
        at = PART + head * part_head + (token.to(tl.int64) * part_token)[:, None] + d[None, :]
        part = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        return mean + weight[:, None] * part, total + weight


@triton.jit(do_not_specialize=["tokens", "sum0", "sum1", "sum2"])
def merge_kernel(
    PART0, SUM0, token0, head0, sum0, PART1, SUM1, token1, head1, sum1, PART2, SUM2, token2, head2, sum2,
    OUT, tokens, factor, out_token, out_head, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (i, h): ROWS tokens of query head h of up to three runs (None: no such run).

    PART [H, T, D] with strides ``token`` and ``head``; SUM: log-sum-exp float32 [H, T] with stride ``sum`` of heads.
    OUT is ``factor`` times the weighted mean.
    """
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    here = token < tokens
    d = tl.arange(0, triton.next_power_of_2(D))
    mask = here[:, None] & (d < D)[None, :]
    largest = _largest(tl.full([ROWS], -float("inf"), tl.float32), SUM0, sum0, head, token, here)
    largest = _largest(largest, SUM1, sum1, head, token, here)
    largest = _largest(largest, SUM2, sum2, head, token, here)
    mean = tl.zeros([ROWS, triton.next_power_of_2(D)], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean, total = _added(mean, total, largest, PART0, SUM0, token0, head0, sum0, head, token, here, mask, d)
    mean, total = _added(mean, total, largest, PART1, SUM1, token1, head1, sum1, head, token, here, mask, d)
    mean, total = _added(mean, total, largest, PART2, SUM2, token2, head2, sum2, head, token, here, mask, d)
    at = OUT + (token.to(tl.int64) * out_token)[:, None] + head * out_head + d[None, :]
    tl.store(at, round16(mean * (factor / total)[:, None], OUT.dtype.element_ty), mask=mask)

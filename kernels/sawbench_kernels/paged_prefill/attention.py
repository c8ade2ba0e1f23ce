"""Causal attention of the last T tokens of a sequence over all S of them, by torch's own fused kernels.

cuDNN is the fastest on Hopper, but it masks from the first key on, not from the last, and plans anew for every shape
(40 to 75 ms on an H200). So the keys of a long chunk are cut into runs: the T own ones (causal, filled up with zeros to
a multiple of GRANULE, which no real row sees), the past ones up to a multiple of GRANULE, and the rest of these, for
flash attention, which takes any shape. Runs are merged by their log-sum-exp. Few shapes come of it, and they recur.
Short chunks, which would be bound by their launches, go to flash attention together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention
from torch.nn.functional import pad

from sawbench_kernels.paged_prefill.kernel import merge_kernel

GRANULE = 1024
"""Tokens; chunks of fewer are short."""

MOST_RUNS = 3
Part = tuple[Tensor, Tensor]
"""(output [1, H_q, T, Dv], log-sum-exp float32 [1, H_q, T]) over a run of keys."""


@torch.library.custom_op("sawbench::causal_attention", mutates_args=())
def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, factor: float, dtype: torch.dtype
) -> Tensor:
    """``factor`` times the output, in ``dtype`` [T, H_q, Dv], of ``query`` [T, H_q, D], ``key`` [S, H_kv, D] and
    ``value`` [S, H_kv, Dv], S >= T."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    out = torch.empty(*query.shape[:2], value.shape[2], dtype=dtype, device=query.device)
    _merge(_runs(q, k, v, scale), factor, out)
    return out


@causal_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float, factor: float, dtype: torch.dtype) -> Tensor:
    return query.new_empty((*query.shape[:2], value.shape[2]), dtype=dtype)


@torch.library.custom_op("sawbench::causal_attention_of_many", mutates_args=())
def causal_attention_of_many(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
    factor: float,
    dtype: torch.dtype,
) -> Tensor:
    """:func:`causal_attention` of sequences that lie one after another in ``query``, ``key`` and ``value``.

    ``ends`` int32 [2, sequences + 1]: the lengths summed, from 0 on, where the kernel reads them.
    """
    out = torch.empty(*query.shape[:2], value.shape[2], dtype=dtype, device=query.device)
    if _flash_takes(query, key):
        filled = _filled(value, query.shape[-1] - value.shape[-1], 0)
        most = max(query_lengths), max(context_lengths)
        op = torch.ops.aten._flash_attention_forward
        part, total = op(query, key, filled, ends[0], ends[1], *most, 0.0, True, False, scale=scale)[:2]
        _merge([(part[..., : value.shape[-1]].transpose(0, 1)[None], total[None])], factor, out)
        return out
    chunks = (x.split(list(n)) for x, n in ((query, query_lengths), (key, context_lengths), (value, context_lengths)))
    parts = [causal_attention(q, k, v, scale, factor, dtype) for q, k, v in zip(*chunks, strict=True)]
    return torch.cat(parts, out=out)


@causal_attention_of_many.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, query_lengths: Sequence[int],
    context_lengths: Sequence[int], scale: float, factor: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return query.new_empty((*query.shape[:2], value.shape[2]), dtype=dtype)


def _flash_takes(query: Tensor, key: Tensor) -> bool:
    """Of their dtype, device and head sizes; any lengths are taken."""
    q, k = (x[:1].transpose(0, 1)[None] for x in (query, key))
    return can_use_flash_attention(SDPAParams(q, k, k, None, 0.0, False, True))


def _runs(query: Tensor, key: Tensor, value: Tensor, scale: float) -> list[Part]:
    tokens, first = query.shape[2], key.shape[2] - query.shape[2]
    own = key[:, :, first:], value[:, :, first:]
    planned = tokens >= GRANULE and can_use_cudnn_attention(SDPAParams(query, *own, None, 0.0, True, True))
    if not planned:
        runs = [_any_shape(query, *own, True, scale)]
        return [*runs, _any_shape(query, key[:, :, :first], value[:, :, :first], False, scale)] if first else runs
    bulk = first // GRANULE * GRANULE
    filled, k, v = (_filled(x, 0, -tokens % GRANULE) for x in (query, *own))
    parts = [_cudnn(filled, k, v, True, scale)]
    if bulk:
        parts.append(_cudnn(filled, key[:, :, :bulk], value[:, :, :bulk], False, scale))
    if bulk < first:
        parts.append(_any_shape(query, key[:, :, bulk:first], value[:, :, bulk:first], False, scale))
    return parts


def _filled(x: Tensor, dims: int, tokens: int) -> Tensor:
    """``x`` [..., T, D] with so many more, all zeros; itself where there are none (``pad`` would copy it)."""
    return pad(x, (0, dims, 0, tokens)) if dims or tokens else x


def _cudnn(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Part:
    op = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, lse = op(query, key, value, None, True, 0.0, causal, False, scale=scale)[:2]
    return out, lse.reshape(out.shape[:3])


def _any_shape(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Part:
    """Flash attention, for which keys and values must be equally wide; in plain steps where there is none."""
    width = value.shape[-1]
    value = _filled(value, query.shape[-1] - width, 0)
    if not can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, causal, True)):
        return _plain(query, key, value[..., :width], causal, scale)
    op = torch.ops.aten._scaled_dot_product_flash_attention
    out, lse = op(query, key, value, 0.0, causal, False, scale=scale)[:2]
    return out[..., :width], lse


def _plain(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Part:
    group = query.shape[1] // key.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1) for x in (key, value))
    scores = query.float() @ keys.mT * scale
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), float("-inf"))
    return (scores.softmax(-1) @ values).to(query.dtype), scores.logsumexp(-1)


def _merge(parts: list[Part], factor: float, out: Tensor) -> None:
    tokens, heads, dim = out.shape
    runs: list[Tensor | int | None] = []
    for part, total in parts:
        total = total.contiguous()
        runs += [part, total, part.stride(2), part.stride(1), total.stride(1)]
    runs += [None, None, 0, 0, 0] * (MOST_RUNS - len(parts))
    rows = 16
    with torch.cuda.device_of(out):
        merge_kernel[(-(-tokens // rows), heads)](
            *runs, out, tokens, factor, out.stride(0), out.stride(1), D=dim, ROWS=rows, num_warps=4
        )

"""Causal attention of the last T tokens of a sequence over all S of them, by torch's own fused kernels.

cuDNN, the fastest on Hopper, masks from the first key on, not from the last, so the square of the T own keys
(causal) and the S - T keys before them (no mask) are two calls, merged by their log-sum-exp.
"""

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention

PLAN_MULTIPLE = 128
"""cuDNN plans anew for every shape, for milliseconds: only shapes that recur, multiples of this, go to it."""


@torch.library.custom_op("sawbench::causal_attention", mutates_args=())
def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Output [T, H_q, Dv] of ``query`` [T, H_q, D], ``key`` [S, H_kv, D] and ``value`` [S, H_kv, Dv], S >= T."""
    first = len(key) - len(query)
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    out, own_lse = _attend(q, k[:, :, first:], v[:, :, first:], True, scale)
    if first:
        past, past_lse = _attend(q, k[:, :, :first], v[:, :, :first], False, scale)
        share = torch.sigmoid(own_lse - past_lse)[..., None]
        out = torch.lerp(past.float(), out.float(), share).to(query.dtype)
    return out[0].transpose(0, 1).contiguous()


@causal_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return query.new_empty((*query.shape[:2], value.shape[2]))


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(output [1, H_q, T, Dv] in query's dtype, log-sum-exp float32 [1, H_q, T]) of [1, H, tokens, D] operands."""
    if not query.is_cuda:
        return _plain(query, key, value, causal, scale)
    width = value.shape[-1]
    if width < query.shape[-1]:
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
    params = SDPAParams(query, key, value, None, 0.0, causal, True)
    regular = query.shape[2] % PLAN_MULTIPLE == key.shape[2] % PLAN_MULTIPLE == 0
    if regular and can_use_cudnn_attention(params):
        out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, 0.0, causal, False, scale=scale
        )[:2]
    elif can_use_flash_attention(params):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scale
        )[:2]
    else:
        return _plain(query, key, value[..., :width], causal, scale)
    return out[..., :width], lse.reshape(out.shape[:3])


def _plain(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1) for x in (key, value))
    scores = query.float() @ keys.mT * scale
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), float("-inf"))
    return (scores.softmax(-1) @ values).to(query.dtype), scores.logsumexp(-1)

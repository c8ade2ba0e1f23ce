"""Attention over a quantized cache in PyTorch: the specification, in float32 or wider."""

import torch
from torch import Tensor

from sawbench.cache.view import LayerView

SCORE_ELEMENTS = 1 << 26  # scores held at once: 256 MiB in float32


def attend(query: Tensor, view: LayerView, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention of ``query`` [B, Hq, T, D] over a layer's cache; [B, T, Hq, D] in the query's dtype.

    The query meets keys as they are stored (rotated, without their offset); the offset's own scores q . offset are
    added. Values are summed as they are stored, the sum is rotated back, and the offset's share is added. ``mask``
    bool [B, 1, T, S] is True where a query may look; None is causal, the last query at the last token.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    q = query.to(wide)
    if view.exact is not None:
        return attend_exact(query, *view.exact, mask, scaling)
    k, v = view.layer.key, view.layer.value
    keys = [(k.transform.query(q), view.key.values(wide))]
    key_offset = view.key.offset(view.positions, wide)
    if key_offset is not None:
        keys.append((q, key_offset.expand(keys[0][1].shape)))
    values = [view.value.values(wide)]
    value_offset = view.value.offset(view.positions, wide)
    if value_offset is not None:
        values.append(value_offset.expand(values[0].shape))
    stored, *offset = _blocked(keys, values, mask, scaling)
    return sum(offset, start=v.transform.inverse(stored)).to(query.dtype)


def attend_exact(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """The same over unquantized ``key``, ``value`` [B, S, H, D]."""
    wide = torch.promote_types(query.dtype, torch.float32)
    return _blocked([(query.to(wide), key.to(wide))], [value.to(wide)], mask, scaling)[0].to(query.dtype)


def _blocked(
    keys: list[tuple[Tensor, Tensor]], values: list[Tensor], mask: Tensor | None, scaling: float
) -> list[Tensor]:
    """For each of ``values`` the attention output [B, T, Hq, D], where scores are the sum over ``keys`` of q k^T."""
    batch, heads, tokens, _ = keys[0][0].shape
    length = values[0].shape[1]
    rows = max(1, SCORE_ELEMENTS // max(1, batch * heads * length))
    blocks = []
    for start in range(0, tokens, rows):
        stop = min(start + rows, tokens)
        allowed = _allowed(mask, start, stop, tokens, length, values[0].device)
        blocks.append(_block([(q[:, :, start:stop], k) for q, k in keys], values, allowed, scaling))
    return [torch.cat(parts, 1) for parts in zip(*blocks, strict=True)]


def _allowed(mask: Tensor | None, start: int, stop: int, tokens: int, length: int, device: torch.device) -> Tensor:
    if mask is not None:
        return mask[:, :, start:stop, :length]
    queries = torch.arange(length - tokens + start, length - tokens + stop, device=device)
    return (torch.arange(length, device=device) <= queries[:, None])[None, None]


def _block(keys: list[tuple[Tensor, Tensor]], values: list[Tensor], allowed: Tensor, scaling: float) -> list[Tensor]:
    """Query head h reads KV head h // G. The G queries of a KV head stand in one axis with their tokens: a product that
    broadcast K and V over G would first copy them G times."""
    kv_heads, tokens = values[0].shape[2], keys[0][0].shape[2]
    terms = [q.unflatten(1, (kv_heads, -1)).flatten(2, 3) @ k.permute(0, 2, 3, 1) for q, k in keys]
    scores = sum(terms[1:], start=terms[0]).unflatten(2, (-1, tokens))  # [B, H, G, T, S]
    # The most negative number, not infinity: a padding query that may look nowhere stays finite.
    scores = (scores * scaling).masked_fill(~allowed[:, :, None], torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).flatten(2, 3)
    outputs = [(weights @ v.transpose(1, 2)).unflatten(2, (-1, tokens)) for v in values]
    return [output.flatten(1, 2).transpose(1, 2) for output in outputs]

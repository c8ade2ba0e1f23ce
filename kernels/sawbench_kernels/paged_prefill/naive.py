"""The specification of paged prefill: causal attention of chunks over their sequences' pages, in plain PyTorch."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sawbench_kernels.dequantize_pages.naive import dequantize_pages
from sawbench_kernels.pages import slots_of
from sawbench_kernels.quantize_store.spec import StoreSpec


def paged_prefill(
    query: Tensor,
    planes: Mapping[str, Tensor],
    block_tables: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    spec: StoreSpec,
    scale: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Attention output [T, H_q, D] in ``dtype``, in which all arithmetic runs.

    The chunks of all sequences lie one after another in ``query`` [T, H_q, D] (after RoPE, unrotated). Sequence i has
    ``context_lengths[i]`` tokens in its pages, the last ``query_lengths[i]`` of which are its chunk's own.
    """
    out = []
    chunks = query.to(dtype).split(list(query_lengths))
    for chunk, table, length in zip(chunks, block_tables, context_lengths, strict=True):
        slots = slots_of(table, length, spec.layout.page_size)
        positions = torch.arange(length, device=query.device)
        key = dequantize_pages(planes, slots, spec, "key", positions, dtype)
        value = dequantize_pages(planes, slots, spec, "value", None, dtype)
        out.append(_causal(chunk, key, value, scale))
    return torch.cat(out) if out else torch.zeros_like(query, dtype=dtype)


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    grouped = query.unflatten(1, (key.shape[1], -1))
    scores = scale * torch.einsum("thgd,shd->hgts", grouped, key)
    first = len(key) - len(query)
    visible = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device).tril(first)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hgts,shd->thgd", weights, value).flatten(1, 2)

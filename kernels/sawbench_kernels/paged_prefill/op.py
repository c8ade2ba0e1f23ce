"""Causal attention of prompt chunks over the quantized pages of their sequences; :mod:`.naive` is the specification.

The live tokens of a sequence are dequantized into a workspace and torch's fused attention does the rest: the copy is
a percent of the attention at 16k. Precision is kept where it is lost in bf16:

* the workspace is fp16, not bf16: 8 times finer, as fast, and K and V are scaled by 1/16 so that even saturated
  (scale, min) pairs fit; pages that hold 16-bit values alone keep their dtype;
* the query is used as the model made it, since dequantize_pages turns keys back and adds offsets in float32;
* where a key bias was split off, keys reach 200 and logits 1,464: the dimensions of the bias carry a second column
  with what fp16 rounded away, and the query repeats itself there.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from sawbench_kernels.dequantize_pages.op import DequantizePages
from sawbench_kernels.launch import DTYPES
from sawbench_kernels.paged_decode.naive import KeyBias
from sawbench_kernels.paged_prefill.attention import GRANULE, causal_attention, causal_attention_of_many
from sawbench_kernels.pages import slots_of
from sawbench_kernels.quantize_store.spec import StoreSpec

FIT = 1 / 16
"""Keys and values are scaled by it on their way to fp16: 65,504 * 16 is above any (scale, min) pair's largest value."""


class Together(NamedTuple):
    """Neighbouring chunks that are computed at once: short ones, or a single long one.

    slots, positions: int64 [sum of context lengths], sequence after sequence; the lengths are host integers; ``ends``
    int32 [2, sequences + 1]: both summed, from 0 on, on the device.
    """

    slots: Tensor
    positions: Tensor
    query_lengths: tuple[int, ...]
    context_lengths: tuple[int, ...]
    ends: Tensor

    @property
    def tokens(self) -> int:
        return sum(self.query_lengths)


class PrefillPlan(NamedTuple):
    """Which tokens a step's chunks attend to, one for all layers; ``slots`` and ``positions`` of all chunks."""

    slots: Tensor
    positions: Tensor
    parts: tuple[Together, ...]

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


def plan_prefill(
    block_tables: Sequence[Tensor] | Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    page_size: int,
) -> PrefillPlan:
    """The plan of at least one chunk; ``block_tables``: the pages of each sequence, integers [pages].

    ``context_lengths`` count the chunk's own tokens too.

    Raises:
        ValueError: a chunk is empty or longer than its context, or a block table is too short for it.
    """
    if not len(block_tables) == len(query_lengths) == len(context_lengths):
        raise ValueError("block_tables, query_lengths and context_lengths count different sequences")
    for chunk, context, table in zip(query_lengths, context_lengths, block_tables, strict=True):
        if not 0 < chunk <= context or context > len(table) * page_size:
            raise ValueError(f"a chunk of {chunk} tokens, {context} of context and {len(table)} pages")
    slots = torch.cat([slots_of(t, n, page_size) for t, n in zip(block_tables, context_lengths, strict=True)])
    positions = torch.cat([torch.arange(n, device=slots.device) for n in context_lengths])
    sums = [list(accumulate(lengths, initial=0)) for lengths in (query_lengths, context_lengths)]
    parts = []
    for _, members in groupby(range(len(block_tables)), lambda i: -1 if query_lengths[i] < GRANULE else i):
        first, *others = members
        end = first + len(others) + 1
        live = slice(sums[1][first], sums[1][end])
        ends = torch.tensor([[s - each[first] for s in each[first : end + 1]] for each in sums], dtype=torch.int32)
        lengths = tuple(query_lengths[first:end]), tuple(context_lengths[first:end])
        parts.append(Together(slots[live], positions[live], *lengths, _sent(ends, slots.device)))
    return PrefillPlan(slots, positions, tuple(parts))


def _sent(host: Tensor, device: torch.device) -> Tensor:
    """On its way to ``device``, without waiting for it."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


class PagedPrefill:
    """Paged prefill of one layer; made once, called for every step that has prompt chunks.

    Args:
        workspace: bytes that the dequantized keys and values of one pass may take; KV heads are done in turns where
            a sequence needs more (one head is the least).
        positions: one above the largest position, where the spec has a key bias.

    Raises:
        ValueError: what ``spec`` asks for is nothing that the kernels do; the message names it.
    """

    def __init__(
        self,
        spec: StoreSpec,
        scale: float,
        device: torch.device,
        positions: int = 131_072,
        workspace: int = 1 << 30,
    ) -> None:
        layout = spec.layout
        self.spec, self.workspace = spec, workspace
        self.raw = layout.key_bits == layout.value_bits == 16
        self.dtype = layout.dtype if self.raw and spec.key_bias is None else torch.float16
        self.fit = 1.0 if self.raw else FIT
        self.scale = scale / self.fit
        self.low_dims = None if spec.key_bias is None else _biased_dims(spec.key_bias).to(device)
        self.key = DequantizePages(spec, "key", device, positions, self.low_dims)
        self.value = DequantizePages(spec, "value", device, positions)

    def __call__(self, query: Tensor, planes: Mapping[str, Tensor], plan: PrefillPlan) -> Tensor:
        """Attention output [T, H_q, D] in ``query``'s dtype.

        Args:
            query: fp16 or bf16 [T, H_q, D], the chunks one after another, after RoPE, unrotated.
            planes: :meth:`PageLayout.view` of one layer's pool; the chunks' own keys and values are in it.
        """
        layout = self.spec.layout
        if query.dtype not in DTYPES or query.shape[-1] != layout.head_dim or query.shape[1] % layout.kv_heads:
            cache = f"{layout.kv_heads} heads of {layout.head_dim}"
            raise ValueError(f"query {tuple(query.shape)} {query.dtype} does not fit {cache}")
        if len(query) != plan.tokens:
            raise ValueError(f"query holds {len(query)} tokens, the plan {plan.tokens}")
        rows = query.split([part.tokens for part in plan.parts])
        return _joined([self._part(*each, planes) for each in zip(rows, plan.parts, strict=True)], 0)

    def _part(self, query: Tensor, part: Together, planes: Mapping[str, Tensor]) -> Tensor:
        heads, dim = self.spec.layout.kv_heads, self.spec.layout.head_dim
        per_head = len(part.slots) * (2 * dim + self.key.extra) * 2
        turn = max(1, min(heads, self.workspace // per_head))
        group = query.shape[1] // heads
        wide = self._extended(query)
        turns = []
        for first in range(0, heads, turn):
            span = (first, min(first + turn, heads))
            key = self.key(planes, part.slots, part.positions, self.dtype, self.fit, span)
            value = self.value(planes, part.slots, None, self.dtype, self.fit, span)
            mine = slice(span[0] * group, span[1] * group)
            how = self.scale, 1 / self.fit, query.dtype
            if part.query_lengths[0] >= GRANULE:
                turns.append(causal_attention(wide[:, mine], key, value, *how))
            else:
                lengths = part.ends, part.query_lengths, part.context_lengths
                turns.append(causal_attention_of_many(wide[:, mine], key, value, *lengths, *how))
        return _joined(turns, 1)

    def _extended(self, query: Tensor) -> Tensor:
        """The query in the workspace's dtype, repeated at the dimensions that have a low column."""
        q = query.to(self.dtype)
        if self.low_dims is None:
            return q
        grouped = q.unflatten(1, (len(self.low_dims), -1))
        index = self.low_dims.clamp_min(0).to(torch.int64)[None, :, None].expand(*grouped.shape[:3], -1)
        return torch.cat((grouped, grouped.gather(-1, index)), -1).flatten(1, 2)


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    """A single part as it is: at 16k tokens a copy would be two percent of the attention."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _biased_dims(split: KeyBias) -> Tensor:
    """int32 [H, E]: the dimensions of each head that the split moves, filled up with -1 to a multiple of 8."""
    touched = split.bias.cpu() != 0
    first, second = split.rotary.pairs.cpu().unbind(-1)
    either = touched[:, first] | touched[:, second]
    touched[:, first] = touched[:, second] = either
    dims = torch.full((len(touched), -(-int(touched.sum(1).max()) // 8) * 8), -1, dtype=torch.int32)
    for head, mask in enumerate(touched):
        kept = mask.nonzero().squeeze(1)
        dims[head, : len(kept)] = kept.to(torch.int32)
    return dims

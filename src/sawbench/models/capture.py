"""Watch what every attention layer is given: post-RoPE queries and keys, and values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sawbench.core.errors import UserError
from sawbench.methods.parts import LayerSample

Visit = Callable[[Any, Tensor, Tensor, Tensor], None]
"""Called for each layer with its module, query [B, Hq, T, D], key [B, H, T, D] and value [B, H, T, D]."""

_WATCH = "sawbench_watch"
_visit: ContextVar[Visit] = ContextVar("visit")
_OUTPUT_NAMES = ("o_proj", "out_proj", "dense", "c_proj", "wo")


def _watched_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
    _visit.get()(module, query, key, value)
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **kwargs)


AttentionInterface.register(_WATCH, _watched_attention)
# Without a mask function of the same name transformers would drop the padding mask without a word.
AttentionMaskInterface.register(_WATCH, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@contextmanager
def watching(model: Any, visit: Visit) -> Iterator[None]:
    """While open, ``visit`` sees every attention call of ``model``; its attention implementation comes back after."""
    before = model.config._attn_implementation
    token = _visit.set(visit)
    model.set_attn_implementation(_WATCH)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        _visit.reset(token)


@torch.no_grad()
def capture(model: Any, tokens: Tensor) -> list[LayerSample]:
    """One LayerSample a layer for ``tokens`` int64 [1, T], in float32 on the CPU, from one forward pass."""
    samples: list[LayerSample] = []

    def keep(module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
        q, k, v = (t[0].transpose(0, 1).float().cpu() for t in (query, key, value))
        samples.append(LayerSample(q, k, v, output_weight(module), getattr(module, "scaling", None)))

    with watching(model, keep):
        model(input_ids=tokens.to(model.device), use_cache=False, logits_to_keep=1)
    return samples


@torch.no_grad()
def attention_shapes(model: Any) -> list[tuple[int, int, int]]:
    """Query heads, KV heads and head size that each attention layer is really given, from a forward of one token."""
    shapes: list[tuple[int, int, int]] = []

    def keep(module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
        shapes.append((query.shape[1], key.shape[1], key.shape[3]))

    with watching(model, keep):
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    return shapes


def output_weight(attention: nn.Module) -> Tensor:
    """W_o of an attention module, float32 [hidden, Hq * D] on the CPU."""
    for name in _OUTPUT_NAMES:
        projection = getattr(attention, name, None)
        if isinstance(projection, nn.Module):
            weight = cast(Tensor, projection.weight).detach().float().cpu()
            return weight.T if type(projection).__name__ == "Conv1D" else weight
    raise UserError(f"{type(attention).__name__} has no output projection named one of: {', '.join(_OUTPUT_NAMES)}")

"""How a Hugging Face model is made to read a quantized cache: an attention function, its mask, and a positions hook."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from sawbench.attention.naive import attend
from sawbench.cache.hf import QuantizedCache
from sawbench.cache.view import LayerView

NAME = "sawbench"


def attention(
    module: nn.Module, query: Tensor, key: Any, value: Any, attention_mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function: ``key`` is the layer's view, which a QuantizedCache returned from ``update``.

    Raises:
        TypeError: the model ran without a QuantizedCache.
    """
    if not isinstance(key, LayerView):
        raise TypeError("attention 'sawbench' reads a QuantizedCache: pass one to the model's forward")
    output = attend(query, key, attention_mask, scaling)
    if key.observe is not None:
        key.observe(query, attention_mask, scaling, output)
    return output, None


def mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Boolean masks. Without a mask function of the same name, transformers would drop left padding in silence."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def install(model: Any) -> None:
    """Make ``model`` attend through this module."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    if model.config._attn_implementation != NAME:  # another engine may have had the model meanwhile
        model.set_attn_implementation(NAME)


def cache_argument(model: nn.Module) -> str:
    """The name of forward's cache argument: ``past_key_values`` became ``cache`` between transformers 5.17 and 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@contextmanager
def watching_positions(model: nn.Module, cache: QuantizedCache) -> Iterator[None]:
    """While this is open, ``cache`` learns the positions of every forward from the rotary module's own argument, and
    which tokens are padding from the model's."""

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if positions is not None:
            cache.note_positions(positions)

    def note_mask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = kwargs.get("attention_mask")
        cache.note_mask(given if isinstance(given, Tensor) and given.ndim == 2 else None)

    rotary = [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1].startswith("rotary_emb")]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in rotary]
    handles.append(model.register_forward_pre_hook(note_mask, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

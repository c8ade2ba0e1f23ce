"""Fewer and larger launches in a step: the decoder of a Hugging Face model, compiled part by part.

At batch 1 an 8B model's step is bound by its weights' bytes only if the small operations between the matrix products do
not outnumber them: a norm written out is six launches, the rotary embedding ten. Here torch.compile fuses them, and
products of one input (queries, keys and values; gate and up) become one product. Attention stays outside: it is a
kernel, or several, of its own. The model itself is left as it was, for whoever else runs it.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch.fx.experimental import _config as experimental

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers that transformers' modelling code applies to one and the same input."""
RECOMPILE_LIMIT = 128


class Fused:
    """The ``layers`` decoder layers of a model, its last norm and its rotary embedding, compiled."""

    _made: ClassVar[WeakKeyDictionary[nn.Module, "Fused"]] = WeakKeyDictionary()

    @classmethod
    def of(cls, model: nn.Module) -> "Fused":
        """That of ``model``, made once: engines that share a model share its merged weights too."""
        if model not in cls._made:
            cls._made[model] = cls(model)
        return cls._made[model]

    def __init__(self, model: nn.Module) -> None:
        layers = [m for m in model.modules() if hasattr(getattr(m, "self_attn", None), "layer_idx")]
        self._forwards = [(m, torch.compile(_twin(m).forward, dynamic=True)) for m in (*layers, *_beside(model))]
        self.layers = len(layers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it the model runs what is compiled."""
        # sizes that happen to be equal when first seen (of a chunk and the model's width, say) are not so for ever
        duck, experimental.use_duck_shape = experimental.use_duck_shape, False
        # the limit counts all models of one family that a process runs; past it layers silently run uncompiled
        limit, dynamo.recompile_limit = dynamo.recompile_limit, max(dynamo.recompile_limit, RECOMPILE_LIMIT)
        for module, forward in self._forwards:
            module.forward = forward
        try:
            yield
        finally:
            for module, _ in self._forwards:
                del module.forward
            experimental.use_duck_shape, dynamo.recompile_limit = duck, limit


def _beside(model: nn.Module) -> list[nn.Module]:
    """What the decoder runs once a step: the norm after its layers, and the cos and sin of positions."""
    decoder: Any = getattr(model, "base_model", model)
    found = [getattr(decoder, name, None) for name in ("norm", "rotary_emb")]
    return [module for module in found if isinstance(module, nn.Module)]


class Product(nn.Module):
    """A product that siblings share, from the first one's turn to the last one's."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.out: Tensor | None = None


class Part(nn.Module):
    """Outputs ``start`` to ``stop`` of ``shared``: siblings are called in their order, on one input."""

    def __init__(self, shared: Product, start: int, stop: int) -> None:
        super().__init__()
        self.shared, self.start, self.stop = shared, start, stop

    def forward(self, x: Tensor) -> Tensor:
        if self.start == 0:
            self.shared.out = self.shared.linear(x)
        out = self.shared.out
        assert out is not None
        if self.stop == out.shape[-1]:
            self.shared.out = None
        return out[..., self.start : self.stop]


def _twin(module: nn.Module) -> Any:
    """A module of the same parameters, with siblings merged: ``module``'s own become views of the merged ones."""
    twin = copy.copy(module)
    twin._modules = {name: _twin(child) if child is not None else None for name, child in module._modules.items()}
    for names in SIBLINGS:
        linears: list[Any] = [twin._modules.get(name) for name in names]
        if _mergeable(linears):
            twin._modules |= zip(names, _parts(linears), strict=True)
    return twin


def _mergeable(linears: list[Any]) -> bool:
    return all(type(x) is nn.Linear and not x._forward_hooks and not x._forward_pre_hooks for x in linears) and (
        len({(x.in_features, x.bias is None, x.weight.dtype) for x in linears}) == 1
    )


def _parts(linears: list[nn.Linear]) -> list[Part]:
    sizes = [x.out_features for x in linears]
    whole = nn.Linear(linears[0].in_features, sum(sizes), bias=linears[0].bias is not None, device="meta")
    for name in ("weight", "bias"):
        owned = [getattr(x, name) for x in linears]
        if owned[0] is not None:
            merged = torch.cat([p.detach() for p in owned])
            setattr(whole, name, nn.Parameter(merged, requires_grad=False))
            for own, view in zip(owned, merged.split(sizes), strict=True):
                own.data = view  # one copy of the weights, not two
    shared = Product(whole)
    return [Part(shared, end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]

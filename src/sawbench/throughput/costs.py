"""What a model costs: parameters that a step reads and multiplies by, and the bytes of its KV cache."""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from sawbench.core.shape import KVShape
from sawbench.methods.method import KVMethod
from sawbench.methods.parts import ModelFacts
from sawbench.models.architecture import FULL, kv_shape, layer_kinds

UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Parameters:
    """Weights of matrix products, in parameters. ``total`` counts everything that the card holds, the embedding table
    too; ``body`` is what every token is multiplied by in every layer; ``head`` the output projection (the embedding
    table itself where the two are tied); ``experts`` all routed experts, of which a token meets ``share``."""

    total: int
    body: int
    head: int
    experts: int = 0
    share: float = 1.0

    @property
    def prefill(self) -> float:
        """Parameters that a prompt token is multiplied by: the output projection sees the last one alone."""
        return self.body + self.experts * self.share

    @property
    def decode(self) -> float:
        """Parameters that a new token is multiplied by."""
        return self.prefill + self.head

    def read(self, tokens: int) -> float:
        """Parameters that a decode step over ``tokens`` sequences reads: experts as far as somebody meets them, if
        routing is uniform. The embedding table is left out: a step reads a row of it for each token."""
        return self.body + self.head + self.experts * (1 - (1 - self.share) ** tokens)


@dataclass(frozen=True)
class Cost:
    """A model with a KV-cache method. ``windows``: how many layers see how many of the last tokens (all: UNBOUNDED);
    ``layer_bytes``: bytes of one token in one layer, K and V."""

    parameters: Parameters
    windows: tuple[tuple[int, int], ...]
    layer_bytes: float
    query_width: int
    """Query heads times head size."""
    itemsize: int = 2

    @property
    def weight_bytes(self) -> int:
        return self.parameters.total * self.itemsize

    @property
    def token_bytes(self) -> float:
        """Bytes of one token over all layers, as far as none of them forgets it."""
        return self.layer_bytes * sum(layers for layers, _ in self.windows)

    def kv_bytes(self, tokens: int) -> float:
        """Bytes that a sequence of ``tokens`` holds, and that its next decode step reads."""
        return self.layer_bytes * sum(layers * min(tokens, window) for layers, window in self.windows)

    def prefill_flops(self, tokens: int) -> float:
        """Matrix products of a prompt, and its causal attention: half of the full square, a window's band."""
        p = self.parameters
        seen = sum(layers * _causal(tokens, window) for layers, window in self.windows)
        return 2 * (p.prefill * tokens + p.head) + 4 * self.query_width * seen


def _causal(tokens: int, window: int) -> float:
    """Pairs of query and key under a causal mask of ``window``."""
    inside = min(tokens, window)
    return inside * inside / 2 + (tokens - inside) * window


def parameters(model: nn.Module, config: Any) -> Parameters:
    """Of any decoder of transformers, on the meta device too: matrices by their shapes."""
    text = config.get_text_config(decoder=True)
    embedding: Any = model.get_input_embeddings().weight  # type: ignore[operator]
    head: Any = model.get_output_embeddings().weight  # type: ignore[operator]
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    total = sum(p.numel() for p in model.parameters())
    own = {id(embedding): embedding, id(head): head}
    matrices = sum(p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in own)
    share = text.num_experts_per_tok / _routed(text) if experts else 1.0
    return Parameters(total, matrices - experts, head.numel(), experts, share)


def _routed(text: Any) -> int:
    names = ("num_local_experts", "n_routed_experts", "num_experts")
    return next(int(getattr(text, name)) for name in names if getattr(text, name, None))


def layer_windows(config: Any) -> tuple[tuple[int, int], ...]:
    """(layers, tokens that they see) by kind of layer; chunks and sliding windows keep their own size."""
    text = config.get_text_config(decoder=True)
    local = getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None) or UNBOUNDED
    kinds = Counter(UNBOUNDED if kind == FULL else int(local) for kind in layer_kinds(config))
    return tuple((layers, window) for window, layers in sorted(kinds.items(), reverse=True))


def meta_model(config: Any) -> nn.Module:
    """Every module and not one byte of weights; models that ``run`` refuses too."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def layer_bytes(method: KVMethod, shape: KVShape) -> float:
    """Bytes that one token takes in one layer with ``method``, counted on what it really encodes; what waits in a
    window of 16 bits is left out.

    Raises:
        UserError: the method cannot store heads of this shape.
    """
    one = KVShape(1, shape.query_heads, shape.kv_heads, shape.head_dim)
    facts = ModelFacts("this shape", one)
    with _quiet():  # a key-bias split is told on purpose of a model without a key bias
        (layer,) = method.bind(facts, method.synthetic(facts, seed=0), torch.device("cpu"))
    return layer.key.token_bytes(shape.kv_heads) + layer.value.token_bytes(shape.kv_heads)


class _quiet:
    """Warnings of the methods' room, off for a moment."""

    def __enter__(self) -> None:
        self.logger = logging.getLogger("sawbench.methods")
        self.level = self.logger.level
        self.logger.setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        self.logger.setLevel(self.level)


def cost_of(method: KVMethod, config: Any, counted: Parameters) -> Cost:
    """The cost of ``method`` on the model of an HF ``config``, from shapes alone."""
    shape = kv_shape(config)
    return Cost(counted, layer_windows(config), layer_bytes(method, shape), shape.query_heads * shape.head_dim)


def cost_of_engine(engine: Any) -> Cost:
    """The cost of what a paged engine really runs: its model's weights and its pages' bytes."""
    loaded = engine.loaded
    config, shape = loaded.model.config, loaded.shape
    size = engine.cache.page_bytes / engine.cache.page_size / shape.layers
    counted = parameters(loaded.model, config)
    windows = ((shape.layers, UNBOUNDED),)
    return Cost(counted, windows, size, shape.query_heads * shape.head_dim, loaded.model.dtype.itemsize)

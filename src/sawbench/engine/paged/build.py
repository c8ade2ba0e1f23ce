"""A paged engine from its configuration: which backend, how many pages, graphs or not."""

import logging
from collections.abc import Mapping
from math import log2
from typing import Any

import torch
from torch import Tensor

from sawbench.attention.paged import NaivePages, PagedCache
from sawbench.core.errors import UserError, illegal
from sawbench.core.shape import KVShape
from sawbench.engine.paged.engine import PagedEngine
from sawbench.engine.paged.rows import Rows
from sawbench.engine.paged.runner import Runner
from sawbench.methods.method import BoundLayer, KVMethod
from sawbench.models import LoadedModel

log = logging.getLogger(__name__)

CPU_POOL = 1_000_000_000
LONGEST = 131_072  # tokens of context that the kernels address
BACKENDS = ("auto", "naive", "triton")
CHUNKS = 4096, 16384
"""Tokens; the least and the most that ``engine.chunk=auto`` takes."""
LAYER_FLOPS = 1.7e12
"""Of one layer's products in a prompt's step: some 2 ms of an H200, about what the host needs to launch a layer. Chunks
of 4,096 took it 80 ms in a model of 1.5B, and the card 30 (results/README.md)."""


def build_paged(config: Any, loaded: LoadedModel, method: KVMethod, tensors: Mapping[str, Tensor]) -> PagedEngine:
    """The paged engine of ``configs/engine/paged.yaml`` for one model and method.

    Raises:
        UserError: an option that is not legal, a backend that cannot serve the method here, a pool without pages.
    """
    check_paged(config, method)
    device = next(loaded.model.parameters()).device
    layers = method.bind(loaded.facts, tensors, device)
    cache = _cache(config, loaded, layers, device)
    context = min(loaded.max_length, LONGEST)
    rows = Rows(config.max_running, -(-context // config.page_size), device)
    return PagedEngine(
        loaded,
        cache,
        _runner(config, loaded, cache, rows),
        max_running=config.max_running,
        chunk=resolved(config, loaded.model.config, loaded.shape, device)["chunk"],
        values_per_token=loaded.shape.values_per_token,
        shared_bytes=sum(t.nbytes for layer in layers for t in layer.shared_tensors()),
    )


def check_paged(config: Any, method: KVMethod) -> None:
    """Needs no weights.

    Raises:
        UserError: a method whose bytes fit no uniform pages; an option that is not legal, or not on this machine.
    """
    if method.unservable:
        raise UserError(f"engine=paged cannot serve method={method.name}: {method.unservable}; engine=hf runs it")
    if config.attention not in BACKENDS:
        raise illegal("attention", config.attention, BACKENDS)
    if config.attention == "triton" and not torch.cuda.is_available():
        raise UserError("attention=triton needs a CUDA device: legal here: auto, naive")
    if config.prefill != "quantized":
        raise UserError(f"prefill={config.prefill} is not for engine=paged, whose prompts attend to what is stored")
    if not config.get("fused", True) and (config.attention == "naive" or not torch.cuda.is_available()):
        raise UserError("engine.fused=false measures kernels: it needs a CUDA device and attention=auto or triton")
    for name in ("page_size", "chunk", "max_running"):
        value, words = config[name], ("auto",) if name == "chunk" else ()
        if value not in words and not (isinstance(value, int) and value >= 1):
            legal = " or ".join([*words, "a whole number from 1 on"])
            raise UserError(f"engine.{name}={value} is not {legal}")
    if config.page_size & config.page_size - 1:
        raise UserError(f"engine.page_size={config.page_size} is no power of two")


def resolved(engine: Mapping[str, Any], model_config: Any, shape: KVShape, device: torch.device) -> dict[str, Any]:
    """``engine`` with ``chunk: auto`` made a number; the least on a CPU, where no launch is waited for."""
    if engine.get("chunk") != "auto":
        return {**engine}
    chunk = chunk_for(layer_parameters(model_config, shape)) if device.type == "cuda" else CHUNKS[0]
    return {**engine, "chunk": chunk}


def layer_parameters(model_config: Any, shape: KVShape) -> int:
    """Of a layer's products, taken for dense and gated: a mixture of experts has more, and is large anyhow."""
    text = model_config.get_text_config()
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    heads = 2 * (shape.query_heads + shape.kv_heads)
    return int(text.hidden_size * (heads * shape.head_dim + 3 * inner))


def chunk_for(parameters: int) -> int:
    """Prompt tokens, a power of two, whose products keep the card as long in one layer as the host takes to launch it:
    few in a large model, where a longer step would only keep the decodes waiting; more in a small one."""
    tokens = LAYER_FLOPS / (2 * parameters)
    return min(max(2 ** int(log2(tokens)), CHUNKS[0]), CHUNKS[1])


def _cache(config: Any, loaded: LoadedModel, layers: list[BoundLayer], device: torch.device) -> PagedCache:
    if config.attention != "naive" and device.type == "cuda":
        from sawbench.attention.paged_triton import TritonPages, Unservable
        from sawbench.attention.paged_unfused import UnfusedPages

        pages = TritonPages if config.get("fused", True) else UnfusedPages
        try:
            return pages.sized(lambda cost: _pages(config, device, cost), layers, loaded, config.page_size, LONGEST)
        except Unservable as reason:
            if config.attention == "triton" or pages is UnfusedPages:
                raise
            log.warning("%s (chosen)", reason)
    return NaivePages.sized(lambda cost: _pages(config, device, cost), layers, loaded, config.page_size)


def _pages(config: Any, device: torch.device, page_bytes: int) -> int:
    """Pages that the budget pays for, page 0 included."""
    budget = int(config.kv_bytes) if config.kv_bytes else _free_bytes(config.gpu_memory, device)
    pages = budget // page_bytes
    if pages < 2:
        option = f"engine.kv_bytes={config.kv_bytes}" if config.kv_bytes else f"engine.gpu_memory={config.gpu_memory}"
        raise UserError(f"{option} leaves {budget} bytes for KV pages of {page_bytes}: at least two are needed")
    return pages


def _free_bytes(share: float, device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_POOL
    if not 0 < share <= 1:
        raise UserError(f"engine.gpu_memory={share} is not a share between 0 and 1")
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(share * total) - (total - free))


def _runner(config: Any, loaded: LoadedModel, cache: PagedCache, rows: Rows) -> Runner:
    graphs = config.graphs if config.graphs != "auto" else cache.name == "triton"
    if not graphs:
        return Runner(loaded.model, cache, rows)
    if cache.name != "triton":
        raise UserError("engine.graphs=true needs attention=triton: the naive backend reads lengths on the host")
    from sawbench.engine.paged.graphs import GraphRunner

    return GraphRunner(loaded.model, cache, rows)

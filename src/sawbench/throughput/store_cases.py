"""quantize_store and paged_prefill in the kernel benchmark: the three ways to store that the paper compares, and the
attention of prompt chunks beside torch's own on contiguous BF16."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from sawbench.throughput.kernel_cases import Case, KernelShape, Prepared, outlier_bias, relative_error
from sawbench_kernels.hadamard.op import hadamard
from sawbench_kernels.kmeans_assign.op import KMeansAssign
from sawbench_kernels.paged_prefill import PagedPrefill, plan_prefill
from sawbench_kernels.paged_prefill.naive import paged_prefill
from sawbench_kernels.pages import PageLayout
from sawbench_kernels.quantize_store.op import QuantizeStore
from sawbench_kernels.quantize_store.reference import quantize_store
from sawbench_kernels.quantize_store.spec import SideSpec, StoreSpec

CHUNK = 4096
"""Tokens of a prompt chunk in serving."""
TAIL = 64
"""Last tokens of a chunk that are checked against the specification."""
BIASED = 8
"""Rotary pairs of a head whose bias stands out."""


@dataclass(frozen=True)
class Cache:
    """What a layer's cache stores; ``pairs``: rotary pairs of the key-bias split (0: no split, None: all).

    ``unfused``: keys are rotated by a launch of its own, through memory. ``assigns``: the search for the nearest
    centroid, a launch for K and one for V, is timed too.
    """

    bits: tuple[int, int] = (4, 4)
    orders: tuple[int, int] = (1, 1)
    unfused: int = 1
    dense: bool = False
    pairs: int | None = 0
    centroids: int = 0
    assigns: bool = False

    def spec(self, shape: KernelShape, device: torch.device) -> StoreSpec:
        heads, dim, count = shape.kv_heads, shape.head_dim, self.centroids
        layout = PageLayout(heads, dim, shape.page_size, *self.bits, key_centroids=count, value_centroids=count)
        books: Any = torch.randn(2, heads, count, dim, device=device) if count else (None, None)
        key: Any = torch.linalg.qr(torch.randn(dim, dim, device=device))[0] if self.dense else self.orders[0]
        bias = outlier_bias(heads, dim, self.pairs) if self.pairs != 0 else None
        return StoreSpec(layout, SideSpec(key, books[0]), SideSpec(self.orders[1], books[1]), bias)


CACHES = {
    "int4": Cache(),
    "bdr": Cache(orders=(128, 1)),
    "bdr_unfused": Cache(unfused=128),
    "bdr_16": Cache(orders=(16, 1)),
    "bdr_kv": Cache(orders=(128, 128)),
    "kbias_bdr_8": Cache(orders=(128, 1), pairs=BIASED),
    "kbias_bdr_all": Cache(orders=(128, 1), pairs=None),
    "hessian": Cache(dense=True),
    "int8": Cache((8, 8)),
    "k8v4": Cache((8, 4)),
    "kmeans_256": Cache(centroids=256),
    "kmeans_256_assign": Cache(centroids=256, assigns=True),
    "bf16_paged": Cache((16, 16)),
}


def store_cases(shape: KernelShape) -> Iterator[Case]:
    """``shape.tokens`` new tokens, read as BF16 and written to permuted slots."""
    for name, cache in CACHES.items():
        layout = cache.spec(shape, torch.device("cpu")).layout
        size = shape.tokens * (4 * shape.kv_heads * shape.head_dim + layout.token_bytes)
        prepare = partial(_prepare_store, cache, shape, size)
        yield Case("quantize_store", name, shape, size, prepare, baseline=name == "bf16_paged")


def _prepare_store(cache: Cache, shape: KernelShape, size: int, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    spec, tokens, sets = cache.spec(shape, device), shape.tokens, shape.sets(size)
    pages = -(-sets * tokens // shape.page_size)
    pool = spec.layout.allocate(pages, device).zero_()
    planes = spec.layout.view(pool)
    order = torch.randperm(pages, device=device).repeat_interleave(shape.page_size) * shape.page_size
    slots = (order + torch.arange(shape.page_size, device=device).repeat(pages))[: sets * tokens].view(sets, tokens)
    key, value = torch.randn(2, sets, tokens, shape.kv_heads, shape.head_dim, device=device, dtype=torch.bfloat16)
    positions = torch.randint(0, 32768, (tokens,), device=device) if spec.key_bias is not None else None
    store = QuantizeStore(spec, device, 32768)
    search = [KMeansAssign(s.codebook, 1, device) for s in (spec.key, spec.value) if s.codebook is not None]
    index: list[Tensor | None] = [find(x[0]) for find, x in zip(search, (key, value), strict=False)] or [None, None]

    def step(i: int) -> None:
        turned = key[i] if cache.unfused == 1 else hadamard(key[i], cache.unfused)
        found = [find(x[i]) for find, x in zip(search, (key, value), strict=True)] if cache.assigns else index
        store(turned, value[i], pool, slots[i], positions, *found)

    def error() -> float:
        step(0)
        written = pool.clone()
        turned = key[0] if cache.unfused == 1 else hadamard(key[0], cache.unfused)
        quantize_store(turned, value[0], planes, slots[0], spec, positions, *index)
        return float((written != pool).float().mean()) * pages / -(-tokens // shape.page_size)

    return Prepared(tuple(partial(step, i) for i in range(sets)), error, 1e-3 if cache.dense else 0.0)


PREFILL = ("int4", "bdr", "bdr_kv", "kbias_bdr_8", "kbias_bdr_all", "hessian", "int8", "kmeans_256", "bf16_paged")


def prefill_cases(shape: KernelShape) -> Iterator[Case]:
    """``batch`` prompts of ``context`` tokens at once, and their last chunk alone; against BF16 SDPA on contiguous
    tensors. ``bytes``: query, output, and the pages read."""
    last = min(CHUNK, shape.context)
    for label, chunk in (("", shape.context), (f"_chunk_{last}", last)):
        if label and chunk == shape.context:
            continue
        moved = shape.batch * chunk * 4 * shape.query_heads * shape.head_dim
        for name in PREFILL:
            cache = CACHES[name]
            size = moved + shape.tokens * cache.spec(shape, torch.device("cpu")).layout.token_bytes
            yield Case(f"paged_prefill{label}", name, shape, size, partial(_prepare_prefill, cache, shape, chunk))
        backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
        for backend in backends if chunk == shape.context else backends[1:]:
            size = moved + shape.tokens * 4 * shape.kv_heads * shape.head_dim
            name = f"sdpa_{backend.name.split('_')[0].lower()}"
            prepare = partial(_prepare_sdpa, backend, shape, chunk)
            yield Case(f"paged_prefill{label}", name, shape, size, prepare, baseline=True, in_turn=True)


def _prepare_prefill(cache: Cache, shape: KernelShape, chunk: int, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    spec, batch, context = cache.spec(shape, device), shape.batch, shape.context
    pages = -(-context // shape.page_size)
    tables = torch.randperm(batch * pages, device=device).to(torch.int32).view(batch, pages)
    pool = spec.layout.allocate(batch * pages, device).zero_()
    planes = spec.layout.view(pool)
    plan = plan_prefill(tables, [chunk] * batch, [context] * batch, shape.page_size)
    key, value = torch.randn(2, shape.tokens, shape.kv_heads, shape.head_dim, device=device, dtype=torch.bfloat16)
    index = [torch.randint(0, cache.centroids, (shape.tokens, 1), device=device) if cache.centroids else None] * 2
    QuantizeStore(spec, device, 32768)(
        key, value, pool, plan.slots, plan.positions if spec.key_bias is not None else None, *index
    )
    scale = shape.head_dim**-0.5
    prefill = PagedPrefill(spec, scale, device, 32768)
    query = torch.randn(batch * chunk, shape.query_heads, shape.head_dim, device=device, dtype=torch.bfloat16)

    def error() -> float:
        """Of the last 64 tokens of the first prompt; a chunk of its own in the specification."""
        out = prefill(query, planes, plan)[chunk - TAIL : chunk]
        tail = query[chunk - TAIL : chunk]
        wide = paged_prefill(tail, planes, tables[:1], [TAIL], [context], spec, scale, torch.float64)
        return relative_error(out, wide)

    return Prepared((lambda: prefill(query, planes, plan),), error)


def _prepare_sdpa(backend: SDPBackend, shape: KernelShape, chunk: int, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    batch, dim = shape.batch, shape.head_dim
    q = torch.randn(batch, shape.query_heads, chunk, dim, device=device, dtype=torch.bfloat16)
    k, v = torch.randn(2, batch, shape.kv_heads, shape.context, dim, device=device, dtype=torch.bfloat16)
    whole = chunk == shape.context
    mask = None if whole else causal_lower_right(chunk, shape.context)

    def step() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, mask, is_causal=whole, enable_gqa=True)

    def error() -> float:
        keys, values = (x[0].double().repeat_interleave(shape.group, 0) for x in (k, v))
        rows = torch.arange(chunk - TAIL, chunk, device=device)
        scores = q[0, :, rows].double() @ keys.mT * dim**-0.5
        seen = torch.arange(shape.context, device=device) <= (rows + shape.context - chunk)[:, None]
        return relative_error(step()[0, :, rows], scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values)

    return Prepared((step,), error)

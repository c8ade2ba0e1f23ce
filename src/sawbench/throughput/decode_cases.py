"""Paged decode in the kernel benchmark: every kind of cache that the methods store, on random pages."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sawbench.throughput.decode_peers import peer_cases
from sawbench.throughput.kernel_cases import Case, KernelShape, Prepared, outlier_bias, relative_error
from sawbench_kernels.paged_decode import DecodeSpec, PagedDecode, naive
from sawbench_kernels.pages import PageLayout

SPREAD = 0.25
"""Lengths of a batch lie within this share of the context, and their mean is the context."""


@dataclass(frozen=True)
class Cache:
    """What a layer's cache stores; ``pairs``: rotary pairs of the key-bias split (0: no split, None: all)."""

    key_bits: int = 4
    value_bits: int = 4
    key_order: int = 1
    value_order: int = 1
    dense: bool = False
    pairs: int | None = 0
    centroids: int = 0

    def layout(self, shape: KernelShape) -> PageLayout:
        c = self.centroids
        return PageLayout(
            shape.kv_heads,
            shape.head_dim,
            shape.page_size,
            self.key_bits,
            self.value_bits,
            key_centroids=c,
            value_centroids=c,
        )

    def spec(self, shape: KernelShape, device: torch.device) -> DecodeSpec:
        heads, dim = shape.kv_heads, shape.head_dim
        options: dict[str, Any] = {"key_rotation": min(self.key_order, dim & -dim)}
        options["value_rotation"] = min(self.value_order, dim & -dim)
        if self.dense:
            options["key_rotation"] = torch.linalg.qr(torch.randn(dim, dim, device=device))[0]
        if self.pairs != 0:
            options["key_bias"] = outlier_bias(heads, dim, self.pairs)
        if self.centroids:
            book = torch.randn(2, heads, self.centroids, dim, device=device)
            options["key_codebook"], options["value_codebook"] = book
        return DecodeSpec(self.layout(shape), dim**-0.5, **options)


CACHES = {
    "int4": Cache(),
    "bdr": Cache(key_order=128),
    "bdr_kv": Cache(key_order=128, value_order=128),
    "hessian": Cache(dense=True),
    "kbias_bdr_8": Cache(key_order=128, pairs=8),
    "kbias_bdr_all": Cache(key_order=128, pairs=None),
    "int8": Cache(8, 8),
    "k8v4": Cache(8, 4),
    "kmeans_16": Cache(centroids=16),
    "kmeans_256": Cache(centroids=256),
    "bf16_paged": Cache(16, 16),
}


def decode_cases(shape: KernelShape) -> Iterator[Case]:
    """Ours, then the peers."""
    for name, cache in CACHES.items():
        layout = cache.layout(shape)
        yield Case(
            "paged_decode",
            name,
            shape,
            bytes=layout.token_bytes * shape.tokens,
            prepare=lambda device, cache=cache: _prepare(cache, shape, device),  # type: ignore[misc]
            baseline=name == "bf16_paged",
            footprint=int(1.1 * layout.token_bytes * shape.tokens * shape.sets(layout.token_bytes * shape.tokens)),
        )
    yield from peer_cases(shape)


def ragged_lengths(batch: int, context: int, seed: int = 0) -> list[int]:
    """``batch`` lengths about ``context`` that sum to ``batch * context``; odd ones, so that no tile ends evenly."""
    draw = torch.rand(batch, generator=torch.Generator().manual_seed(seed)).mul(2).sub(1)
    offsets = ((draw - draw.mean()) * SPREAD * context).round().to(torch.int64)
    offsets[0] -= offsets.sum()
    return (offsets + context).clamp_min(1).tolist()


def _prepare(cache: Cache, shape: KernelShape, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    layout, spec = cache.layout(shape), cache.spec(shape, device)
    lengths = ragged_lengths(shape.batch, shape.context)
    sets = shape.sets(layout.token_bytes * shape.tokens)
    tables, pages = _tables(lengths, layout.page_size, sets, device)
    planes = random_pages(layout, pages, device)
    q = torch.randn(sets, shape.batch, shape.query_heads, shape.head_dim, dtype=torch.bfloat16, device=device)
    counts = torch.tensor(lengths, dtype=torch.int32, device=device)
    decode = PagedDecode(spec, device, max_length=int(max(lengths)))
    steps = tuple(lambda i=i: decode(q[i], planes, tables[i], counts) for i in range(sets))

    def error() -> float:
        rows = sorted({0, lengths.index(max(lengths))})
        out = steps[0]()[rows]
        reference = [
            naive.paged_decode(q[0, [b]], planes, tables[0, [b]], counts[[b]], spec, torch.float64) for b in rows
        ]
        return relative_error(out, torch.cat(reference))

    return Prepared(steps, error)


def _tables(lengths: list[int], page: int, sets: int, device: torch.device) -> tuple[Tensor, int]:
    """Block tables int32 [sets, B, pages] over a shuffled pool in which no page serves twice; unused entries are -1."""
    counts = [math.ceil(length / page) for length in lengths]
    pages = sets * sum(counts)
    order = torch.randperm(pages, device=device).to(torch.int32)
    tables = torch.full((sets, len(lengths), max(counts)), -1, dtype=torch.int32, device=device)
    taken = 0
    for i in range(sets):
        for b, count in enumerate(counts):
            tables[i, b, :count] = order[taken : taken + count]
            taken += count
    return tables, pages


def random_pages(layout: PageLayout, pages: int, device: torch.device) -> dict[str, Tensor]:
    """Planes of a pool of random codes, scales in 0.05 to 0.25 with the range about 0, and random indices."""
    pool = layout.allocate(pages, device)
    pool.random_()
    planes = layout.view(pool)
    for side, bits, centroids in (
        ("key", layout.key_bits, layout.key_centroids),
        ("value", layout.value_bits, layout.value_centroids),
    ):
        if bits == 16:
            planes[f"{side}.codes"].normal_()
        else:
            pair = planes[f"{side}.pair"]
            pair[..., 0].uniform_(0.75 / 2**bits, 3.75 / 2**bits)
            pair[..., 1] = pair[..., 0] * (-0.5 * (2**bits - 1))
        if centroids:
            planes[f"{side}.index"].random_(0, centroids)
    return planes

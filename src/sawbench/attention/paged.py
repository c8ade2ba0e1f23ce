"""One signature for attention over pages: a step's new K and V are stored, then its queries attend.

Two backends keep it: naive (this file: PyTorch, any method, any dtype) and triton (``paged_triton``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from sawbench.attention.naive import attend
from sawbench.cache.view import LayerView
from sawbench.core.shape import KVShape
from sawbench.methods.method import BoundLayer
from sawbench.methods.store import TokenStore
from sawbench_kernels.pages import slots_of

if TYPE_CHECKING:
    from sawbench_kernels.paged_prefill.op import PrefillPlan

NAME = "sawbench_pages"


@dataclass(frozen=True)
class ChunkPlace:
    """A prompt chunk among a step's tokens: ``tokens`` of them, the last at context length ``length``."""

    tokens: int
    length: int
    block_table: Tensor
    """int32 [pages] of its sequence."""


@dataclass(frozen=True)
class PagedStep:
    """Where a step's tokens go and what they see; tensors live on the model's device.

    The first ``block_tables.shape[0]`` tokens are one new token of as many sequences (``block_tables`` int32
    [B, pages], ``lengths`` int32 [B] with the new token counted), the rest are ``chunks`` one after another.
    ``slots`` int64 [T] and ``positions`` int64 [T] are those of all tokens.
    """

    cache: "PagedCache"
    slots: Tensor
    positions: Tensor
    block_tables: Tensor
    lengths: Tensor
    chunks: Sequence[ChunkPlace] = ()

    @cached_property
    def prefill(self) -> "PrefillPlan":
        """The chunks as the prefill kernels take them: made once a step, for all layers."""
        from sawbench_kernels.paged_prefill.op import plan_prefill  # Triton is not everywhere

        tables = torch.stack([chunk.block_table for chunk in self.chunks])
        lengths = [chunk.tokens for chunk in self.chunks], [chunk.length for chunk in self.chunks]
        return plan_prefill(tables, *lengths, self.cache.page_size)


class PagedCache(Protocol):
    """A pool of pages for every layer, and attention over it."""

    name: str
    page_size: int
    pages: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        ...

    def plane_bytes(self) -> Mapping[str, int]:
        """Bytes that one token takes, by plane, over all layers."""
        ...

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, step: PagedStep) -> Tensor:
        """Store ``key``, ``value`` [T, H, D], then attend: [T, Hq, D] for ``query`` [T, Hq, D]."""
        ...


_STEP: ContextVar[PagedStep] = ContextVar("step")
"""The step that a model's forward is in. No keyword of that forward, since a compiler specializes layers on those."""


@torch.compiler.disable  # kernels, which have nothing to fuse with; and the step's places, which are host values
def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function for a flat step [1, H, T, D]."""
    step = _STEP.get()
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return step.cache.attend(module.layer_idx, q, k, v, scaling, step)[None], None


@contextmanager
def attending(model: Any, step: PagedStep) -> Iterator[None]:
    """Within it ``model`` attends over the pages of ``step``. No mask function is registered: lengths and chunks say
    what a token sees."""
    AttentionInterface.register(NAME, attention)
    if model.config._attn_implementation != NAME:  # another engine may have had the model meanwhile
        model.set_attn_implementation(NAME)
    before = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(before)


class NaivePages:
    """Pages of a method's own planes, [pages, page_size, ...] a layer, read through the naive attention."""

    name = "naive"

    def __init__(
        self,
        layers: Sequence[BoundLayer],
        shape: KVShape,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers, self.pages, self.page_size = layers, pages, page_size
        self.rows = [_token_planes(layer, shape, dtype, device) for layer in layers]
        self.planes = [
            {
                name: torch.empty(pages * page_size, *row.shape, dtype=row.dtype, device=device)
                for name, row in rows.items()
            }
            for rows in self.rows
        ]

    @classmethod
    def sized(
        cls, budget: Callable[[int], int], layers: Sequence[BoundLayer], loaded: Any, page_size: int
    ) -> "NaivePages":
        """As many pages as ``budget`` gives for the bytes of one."""
        parameter = next(loaded.model.parameters())
        rows = [_token_planes(layer, loaded.shape, parameter.dtype, parameter.device) for layer in layers]
        pages = budget(page_size * sum(_plane_bytes(rows).values()))
        return cls(layers, loaded.shape, pages, page_size, parameter.dtype, parameter.device)

    @property
    def page_bytes(self) -> int:
        return self.page_size * sum(self.plane_bytes().values())

    def plane_bytes(self) -> dict[str, int]:
        return _plane_bytes(self.rows)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, step: PagedStep) -> Tensor:
        self._store(layer, key, value, step)
        decodes = len(step.lengths)
        places = [ChunkPlace(1, n, table) for n, table in zip(step.lengths.tolist(), step.block_tables, strict=True)]
        parts = query.split([p.tokens for p in (*places, *step.chunks)])
        assert len(parts) == decodes + len(step.chunks)
        outs = [self._read(layer, q, p, scale) for q, p in zip(parts, (*places, *step.chunks), strict=True)]
        return torch.cat(outs)

    def _store(self, layer: int, key: Tensor, value: Tensor, step: PagedStep) -> None:
        for side, codec, x in (("key", self.layers[layer].key, key), ("value", self.layers[layer].value, value)):
            for name, rows in codec.encode(x[None], step.positions[None]).items():
                self.planes[layer][f"{side}.{name}"][step.slots] = rows[0]

    def _read(self, layer: int, query: Tensor, place: ChunkPlace, scale: float) -> Tensor:
        slots = slots_of(place.block_table, place.length, self.page_size)
        positions = torch.arange(place.length, device=query.device)[None]
        stored = {name: plane[slots][None] for name, plane in self.planes[layer].items()}
        codec = self.layers[layer]
        key, value = TokenStore(codec.key, _side(stored, "key")), TokenStore(codec.value, _side(stored, "value"))
        view = LayerView(codec, key, value, positions)
        return attend(query.transpose(0, 1)[None], view, None, scale)[0]


def _token_planes(layer: BoundLayer, shape: KVShape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """What one token stores in a layer, by ``side.plane``: learnt by encoding one."""
    x = torch.zeros(1, 1, shape.kv_heads, shape.head_dim, dtype=dtype, device=device)
    position = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return {
        f"{side}.{name}": plane[0, 0]
        for side, codec in (("key", layer.key), ("value", layer.value))
        for name, plane in codec.encode(x, position).items()
    }


def _plane_bytes(layers: Sequence[Mapping[str, Tensor]]) -> dict[str, int]:
    """Bytes of a token by plane, summed over layers."""
    total: dict[str, int] = {}
    for rows in layers:
        for name, row in rows.items():
            total[name] = total.get(name, 0) + prod(row.shape) * row.dtype.itemsize
    return total


def _side(planes: Mapping[str, Tensor], side: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{side}."): plane for name, plane in planes.items() if name.startswith(f"{side}.")}

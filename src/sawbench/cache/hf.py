"""A quantized KV cache for transformers: ``update`` writes bytes and hands attention a view of them, never tensors.

Only the attention function that ``sawbench.attention.hf`` registers can read such a view. Every operation that
generation performs on a cache is served by moving stored bytes; what is not served raises.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from sawbench.cache.view import LayerView
from sawbench.core.engine import CacheReport
from sawbench.core.shape import KVShape
from sawbench.methods.method import BoundLayer
from sawbench.methods.parts import Planes
from sawbench.methods.store import PlaneStore, SideStore


class QuantizedLayer(CacheLayerMixin):
    """One layer: a store for K and one for V, as the method's sides want them."""

    is_croppable = True
    is_sliding = False

    def __init__(self, codec: BoundLayer, index: int, cache: "QuantizedCache") -> None:
        super().__init__()
        self.codec, self.index, self.cache = codec, index, cache
        self.key, self.value = codec.key.new_store(), codec.value.new_store()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing waits for the first tokens."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Encode a chunk [B, H, T, D] behind what is stored; returns the layer's view twice."""
        key, value = key_states.transpose(1, 2), value_states.transpose(1, 2)
        past = self.key.tokens
        positions = self.cache.row_positions(past + key.shape[1], key)
        current = positions[:, past:]
        self.key.append(key, current, self.cache.padding)
        self.value.append(value, current, self.cache.padding)
        exact = (key, value) if self.cache.exact_prefill and past == 0 else None
        observe = self.cache.observer(self, key, value)
        view = LayerView(self.codec, self.key, self.value, positions, exact, observe)
        return view, view

    def get_seq_length(self) -> int:
        return self.key.tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.key.tokens + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.20 or so

    def stores(self) -> tuple[SideStore, SideStore]:
        return self.key, self.value

    def reset(self) -> None:
        for store in self.stores():
            store.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """``tokens_to_remove`` is negative or 0, as transformers 5 has it.

        Raises:
            ValueError: it is positive (an absolute length, the older convention), or reaches into what a window has
                quantized in groups; the cache is then as it was.
        """
        if tokens_to_remove > 0:
            raise ValueError("crop takes a negative number of tokens to remove")
        for store in self.stores():
            store.check_drop(-tokens_to_remove)
        for store in self.stores() if tokens_to_remove else ():
            store.drop_last(-tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        for store in self.stores():
            store.repeat(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        for store in self.stores():
            store.select(indices)

    def offload(self) -> None:
        raise ValueError("a quantized cache is not offloaded: its bytes are meant to stay where attention reads them")

    prefetch = offload


class QuantizedCache(Cache):
    """The cache of one call: a fresh one for each ``generate`` or forward.

    ``positions`` int32 [B, T] are those that the rotary embedding saw (``note_positions``, from a hook on the rotary
    module), and ``real`` bool [B, T] is False where the attention mask had padding (``note_mask``); both follow their
    rows through every operation. ``exact_prefill`` lets the first chunk attend to its unquantized K and V.
    """

    def __init__(self, layers: Sequence[BoundLayer], shape: KVShape, exact_prefill: bool = False) -> None:
        super().__init__(layers=[QuantizedLayer(layer, i, self) for i, layer in enumerate(layers)])
        self.shape, self.exact_prefill = shape, exact_prefill
        self.rows = PlaneStore()
        self.pending: Tensor | None = None
        self.mask: Tensor | None = None
        self._padding: tuple[Planes, Sequence[int]] = ({}, ())
        self.on_attention: Callable[..., None] | None = None

    def note_positions(self, position_ids: Tensor) -> None:
        """Positions [B or 1, T] of the chunk that the coming forward writes."""
        self.pending = position_ids.to(torch.int32)

    def note_mask(self, attention_mask: Tensor | None) -> None:
        """The coming forward's mask [B, S] over all tokens, its own included; None: no padding."""
        self.mask = attention_mask

    def row_positions(self, length: int, like: Tensor) -> Tensor:
        """Positions [B, ``length``] of all tokens, the chunk being written included."""
        if self.rows.tokens < length:
            new = length - self.rows.tokens
            pending = self.pending
            if pending is None or pending.shape[-1] != new:
                raise RuntimeError("the rotary embedding was not seen: the cache's positions hook is not installed")
            shape = like.shape[0], new
            mask = torch.ones(1, length, dtype=torch.bool) if self.mask is None else self.mask != 0
            real = mask[:, length - new : length].expand(shape)
            self.rows.append({"positions": pending.to(like.device).expand(shape), "real": real.to(like.device)})
            self.pending = None
        return self.rows.planes["positions"]

    def padding(self) -> Sequence[int]:
        """Padding slots of each row, which must lie at its left; waits for the device once a forward.

        Raises:
            ValueError: a row is padded elsewhere.
        """
        planes = self.rows.planes
        if self._padding[0] is not planes:
            real = planes["real"]
            if bool((real[:, 1:] < real[:, :-1]).any()):
                raise ValueError("a window of tokens is kept for rows that are padded on the left, and only there")
            self._padding = planes, (~real).sum(1).tolist()
        return self._padding[1]

    def observer(self, layer: QuantizedLayer, key: Tensor, value: Tensor) -> Callable[..., None] | None:
        """What attention calls with (query, mask, scaling, output), or None where nobody watches."""
        if self.on_attention is None:
            return None
        return partial(self.on_attention, layer, key, value)

    def reset(self) -> None:
        super().reset()
        self.rows.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.rows.select(beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if tokens_to_remove:
            self.rows.drop_last(-tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.rows.repeat(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.rows.select(indices)

    def report(self) -> CacheReport:
        """Bytes by plane, summed over layers, from the allocations themselves."""
        planes: Counter[str] = Counter()
        for layer in self.layers:
            planes.update(bytes_by_plane(layer.stores()))
        batch = self.rows.planes["positions"].shape[0] if self.rows.planes else 0
        tokens = batch * self.rows.tokens
        shared = sum(t.nbytes for layer in self.layers for t in layer.codec.shared_tensors())
        return CacheReport(
            planes, tokens, tokens * self.shape.values_per_token, shared, sum(self.rows.bytes().values())
        )


def bytes_by_plane(stores: tuple[SideStore, SideStore]) -> dict[str, int]:
    """What a layer's K and V take, by ``side.plane``."""
    sides = zip(("key", "value"), stores, strict=True)
    return {f"{side}.{name}": size for side, store in sides for name, size in store.bytes().items()}


def report_of_rows(
    layers: Sequence[BoundLayer], shape: KVShape, lengths: Sequence[int], dtype: torch.dtype
) -> CacheReport:
    """What rows of so many tokens store, each alone: the allocations of one layer, which all are like where a method
    keeps a window, times their number.

    With a window a value's bits depend on how far its row has come. Of a whole run they are those of its answers, which
    the samples know: what a batch held at some moment would depend on who shared it, and on when a run was killed.
    """
    device, planes = layers[0].key.device, Counter[str]()
    for length, rows in Counter(lengths).items():
        x = torch.zeros(1, length, shape.kv_heads, shape.head_dim, dtype=dtype, device=device)
        positions = torch.arange(length, dtype=torch.int32, device=device)[None]
        stores = layers[0].key.new_store(), layers[0].value.new_store()
        for store in stores:
            store.append(x, positions)
        planes.update({name: size * rows * len(layers) for name, size in bytes_by_plane(stores).items()})
    shared = sum(t.nbytes for layer in layers for t in layer.shared_tensors())
    return CacheReport(planes, sum(lengths), sum(lengths) * shape.values_per_token, shared)

"""Attention over pages by the Triton kernels: what a bound method becomes there, or why it cannot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sawbench.attention.paged import PagedStep
from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.methods.method import BoundLayer, BoundSide
from sawbench.methods.offsets import BoundCodebook, BoundKeyBias
from sawbench.methods.quantizers import AffineInt, Raw
from sawbench_kernels.kmeans_assign.op import KMeansAssign
from sawbench_kernels.paged_decode import DecodeSpec, KeyBias, PagedDecode
from sawbench_kernels.paged_prefill.op import PagedPrefill
from sawbench_kernels.pages import PageLayout
from sawbench_kernels.quantize_store.op import QuantizeStore
from sawbench_kernels.quantize_store.spec import SideSpec, StoreSpec


class Unservable(UserError):
    """A method that the pages' kernels do not read; the message says what of it."""


def stored_bits(quantizer: Any, head_dim: int) -> int:
    """Bits of a code in a page: 4, 8, or 16 for values kept as they are.

    Raises:
        Unservable: another width, groups within a head, or a pair that is not fp16.
    """
    match quantizer:
        case Raw(dtype="bfloat16" | "float16"):
            return 16
        case AffineInt(bits=4 | 8, storage="fp16") if quantizer.group_size(head_dim) == head_dim:
            return quantizer.bits
        case AffineInt():
            what = f"{quantizer.bits} bits, group {quantizer.group}, storage {quantizer.storage}"
            raise Unservable(f"the kernels read 4 or 8 bits with one fp16 pair a head, not {what}: attention=naive")
        case Raw():
            raise Unservable(f"the kernels do not read K or V kept in {quantizer.dtype}: attention=naive")
        case _:
            raise Unservable(f"the kernels do not read what {type(quantizer).__name__} stores: attention=naive")


def page_layout(layer: BoundLayer, shape: KVShape, page_size: int, dtype: torch.dtype) -> PageLayout:
    """The layout that holds what ``layer`` stores."""
    books = [side.offset.codebooks.shape for side in (layer.key, layer.value) if isinstance(side.offset, BoundCodebook)]
    try:
        return PageLayout(
            shape.kv_heads,
            shape.head_dim,
            page_size,
            stored_bits(layer.key.quantizer, shape.head_dim),
            stored_bits(layer.value.quantizer, shape.head_dim),
            dtype,
            key_centroids=_indexed(layer.key),
            value_centroids=_indexed(layer.value),
            books=books[0][0] if books else 1,
        )
    except ValueError as error:
        raise Unservable(f"{error}: attention=naive") from error


def _indexed(side: BoundSide) -> int:
    return side.offset.codebooks.shape[1] if isinstance(side.offset, BoundCodebook) else 0


def _by_head(side: BoundSide) -> Tensor | None:
    """Centroids float32 [H_kv, C, D]."""
    books = side.offset.centroids
    return None if books is None else books.transpose(1, 2).flatten(0, 1).contiguous()


class TritonLayer:
    """One layer's three operations, made once."""

    def __init__(
        self, layer: BoundLayer, layout: PageLayout, scale: float, positions: int, device: torch.device
    ) -> None:
        bias = layer.key.offset
        split = KeyBias(bias.bias, bias.rotary) if isinstance(bias, BoundKeyBias) else None
        key, value = _by_head(layer.key), _by_head(layer.value)
        rotations = layer.key.transform.rotation, layer.value.transform.rotation
        store = StoreSpec(layout, SideSpec(rotations[0], key), SideSpec(rotations[1], value), split)
        read = DecodeSpec(
            layout,
            scale,
            *rotations,
            key_bias=split,
            key_codebook=key if layout.key_centroids else None,
            value_codebook=value if layout.value_centroids else None,
            value_mean=value[:, 0] if value is not None and not layout.value_centroids else None,
        )
        self.store = QuantizeStore(store, device, positions)
        self.decode = PagedDecode(read, device, positions)
        self.prefill = PagedPrefill(store, scale, device, positions)
        self.key_index, self.value_index = (
            KMeansAssign(book, layout.books, device) if book is not None and indexed else None
            for book, indexed in ((key, layout.key_centroids), (value, layout.value_centroids))
        )


class TritonPages:
    """A pool of bytes, uint8 [layers, pages, page_bytes], that the kernels write and read.

    Raises:
        Unservable: the kernels do not do what the method asks for.
    """

    name = "triton"

    def __init__(
        self, layers: Sequence[BoundLayer], layout: PageLayout, pages: int, scale: float, positions: int
    ) -> None:
        device = layers[0].key.device
        self.layout, self.pages, self.page_size, self.scale = layout, pages, layout.page_size, scale
        self.pool = layout.allocate(pages, device, len(layers))
        self.planes = [layout.view(pool) for pool in self.pool]
        try:
            self.layers = [TritonLayer(layer, layout, scale, positions, device) for layer in layers]
        except ValueError as error:
            raise Unservable(f"{error}: attention=naive") from error

    @classmethod
    def sized(
        cls, budget: Callable[[int], int], layers: Sequence[BoundLayer], loaded: Any, page_size: int, positions: int
    ) -> "TritonPages":
        """As many pages as ``budget`` gives for the bytes of one; contexts of at most ``positions`` tokens.

        Raises:
            Unservable: the kernels do not read what the method stores.
        """
        layout = page_layout(layers[0], loaded.shape, page_size, next(loaded.model.parameters()).dtype)
        scale = next(m.scaling for m in loaded.model.modules() if hasattr(m, "layer_idx") and hasattr(m, "scaling"))
        context = min(loaded.max_length, positions)
        return cls(layers, layout, budget(layout.page_bytes * len(layers)), scale, context)

    @property
    def page_bytes(self) -> int:
        return self.layout.page_bytes * len(self.layers)

    def plane_bytes(self) -> Mapping[str, int]:
        return {plane.name: plane.bytes // self.page_size * len(self.layers) for plane in self.layout.planes}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, step: PagedStep) -> Tensor:
        if scale != self.scale:
            raise ValueError(f"layer {layer} scales scores by {scale}, the kernels were made for {self.scale}")
        ops, planes = self.layers[layer], self.planes[layer]
        ops.store(
            key,
            value,
            self.pool[layer],
            step.slots,
            step.positions if ops.store.bias else None,
            ops.key_index(key.contiguous()) if ops.key_index else None,
            ops.value_index(value.contiguous()) if ops.value_index else None,
        )
        decodes = len(step.lengths)
        parts = []
        if decodes:
            parts.append(ops.decode(query[:decodes], planes, step.block_tables, step.lengths))
        if step.chunks:
            parts.append(ops.prefill(query[decodes:], planes, step.prefill))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def overflowed(self) -> bool:
        """Whether an fp16 pair had to be saturated anywhere since the pool was made (waits for the device)."""
        return any(bool(ops.store.overflow.item()) for ops in self.layers)

"""Pages of a paged KV cache: which bytes hold what, for one layer.

A page holds ``page_size`` tokens of every KV head of one layer, keys and values, in one run of bytes; a pool is a
uint8 tensor [..., pages, page_bytes] (a leading axis of layers makes it a whole model's). Planes are strided views of
it, head-major so that one KV head's tokens lie side by side:

* ``key.codes``, ``value.codes``: uint8 [P, H_kv, page_size, bytes] as :mod:`sawbench_kernels.packing` packs 4 or 8
  bits, or the values themselves, [P, H_kv, page_size, D] in ``dtype``, at 16 bits;
* ``key.pair``, ``value.pair``: fp16 [P, H_kv, page_size, 2], (scale, min) of a token and head: one 32-bit load;
* ``key.index``, ``value.index``: [P, books, page_size], the token's centroid in each of ``books`` codebooks.

A slot is ``page * page_size + offset`` in int64; slot -1 is skipped by every writer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from sawbench_kernels.packing import packed_bytes

BITS = (4, 8, 16)
ALIGNMENT = 16  # bytes of the widest load a kernel issues: planes start on a multiple of it


@dataclass(frozen=True)
class Plane:
    """One kind of bytes of a page: ``shape`` (without the axis of pages), ``dtype``, and where it starts."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PageLayout:
    """The layout of one layer's pages.

    ``key_bits`` and ``value_bits`` are 4, 8 or 16; ``dtype`` is that of 16-bit values. ``key_centroids`` C > 0 adds a
    k-means index to every token (uint8 up to C = 256, int16 above), one for each of ``books`` codebooks, which share
    the KV heads evenly; likewise ``value_centroids``.

    Raises:
        ValueError: a width, page size or head size that the kernels do not read.
    """

    kv_heads: int
    head_dim: int
    page_size: int = 128
    key_bits: int = 4
    value_bits: int = 4
    dtype: torch.dtype = torch.bfloat16
    key_centroids: int = 0
    value_centroids: int = 0
    books: int = 1

    def __post_init__(self) -> None:
        if self.key_bits not in BITS or self.value_bits not in BITS:
            raise ValueError(f"key_bits={self.key_bits}, value_bits={self.value_bits}: each is one of {BITS}")
        if self.page_size < ALIGNMENT or self.page_size & self.page_size - 1:
            raise ValueError(f"page_size={self.page_size} is no power of two of at least {ALIGNMENT}")
        if self.head_dim % 8:
            raise ValueError(f"head_dim={self.head_dim} is no multiple of 8")
        if self.dtype.itemsize != 2 or not self.dtype.is_floating_point:
            raise ValueError(f"dtype={self.dtype} of 16-bit values is not float16 or bfloat16")
        if self.books < 1 or self.kv_heads % self.books:
            raise ValueError(f"books={self.books} does not divide kv_heads={self.kv_heads}")

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Planes in the order in which they lie in a page."""
        planes: list[Plane] = []
        for name, shape, dtype in self._contents():
            offset = planes[-1].offset + planes[-1].bytes if planes else 0
            planes.append(Plane(name, shape, dtype, offset))
        return tuple(planes)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return self.planes[-1].offset + self.planes[-1].bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer, all KV heads, keys and values."""
        return self.page_bytes // self.page_size

    def allocate(self, pages: int, device: torch.device | str, layers: int | None = None) -> Tensor:
        """A pool of ``pages`` pages, uint8 [pages, page_bytes], or [layers, pages, page_bytes]; contents undefined."""
        leading = (pages,) if layers is None else (layers, pages)
        return torch.empty(*leading, self.page_bytes, dtype=torch.uint8, device=device)

    def view(self, pool: Tensor) -> dict[str, Tensor]:
        """The planes of ``pool`` [..., P, page_bytes] as views [..., P, *plane shape] that share its memory."""
        return {
            p.name: pool[..., p.offset : p.offset + p.bytes].view(p.dtype).unflatten(-1, p.shape) for p in self.planes
        }

    def _contents(self) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        sides = (("key", self.key_bits), ("value", self.value_bits))
        contents = [(f"{side}.codes", *self._codes(bits)) for side, bits in sides]
        heads = (self.kv_heads, self.page_size)
        contents += [(f"{side}.pair", (*heads, 2), torch.float16) for side, bits in sides if bits < 16]
        for side, count in (("key", self.key_centroids), ("value", self.value_centroids)):
            if count:
                contents.append((f"{side}.index", (self.books, self.page_size), index_dtype(count)))
        return contents

    def _codes(self, bits: int) -> tuple[tuple[int, ...], torch.dtype]:
        heads = (self.kv_heads, self.page_size)
        if bits == 16:
            return (*heads, self.head_dim), self.dtype
        return (*heads, packed_bytes(bits, self.head_dim)), torch.uint8


def index_dtype(centroids: int) -> torch.dtype:
    """The narrowest dtype that holds an index below ``centroids``: uint8 up to 256, int16 up to 32,768."""
    if not 0 < centroids <= 1 << 15:
        raise ValueError(f"centroids={centroids} is not in 1..32768")
    return torch.uint8 if centroids <= 256 else torch.int16


def slots_of(block_table: Tensor, length: int, page_size: int) -> Tensor:
    """Slots int64 [length] of the first ``length`` tokens of the sequence whose pages are ``block_table`` [pages]."""
    positions = torch.arange(length, device=block_table.device)
    return block_table.to(torch.int64)[positions // page_size] * page_size + positions % page_size


def store(planes: Mapping[str, Tensor], slots: Tensor, encoded: Mapping[str, Tensor]) -> None:
    """Scatter ``encoded`` (plane name -> [T, H, ...]) into ``planes`` ([P, H, page_size, ...]) at ``slots`` [T]."""
    kept = slots >= 0
    for name, rows in encoded.items():
        plane = planes[name]
        page_size = plane.shape[2]
        live = slots[kept]
        plane[live // page_size, :, live % page_size] = rows[kept].to(plane.dtype)


def gather(planes: Mapping[str, Tensor], slots: Tensor) -> dict[str, Tensor]:
    """What lies at ``slots`` int64 [T], each at least 0: plane name -> [T, H, ...]. Inverse of :func:`store`."""
    return {name: plane[slots // plane.shape[2], :, slots % plane.shape[2]] for name, plane in planes.items()}

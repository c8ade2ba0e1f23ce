"""Small caches in pages for the kernels' tests: on the GPU where there is one, else in Triton's interpreter."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sawbench_kernels.key_bias import Rotary, rotated_bias
from sawbench_kernels.paged_decode.naive import KeyBias
from sawbench_kernels.pages import PageLayout, slots_of
from sawbench_kernels.quantize_store.reference import quantize_store
from sawbench_kernels.quantize_store.spec import Rotation, SideSpec, StoreSpec

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE, HEADS = 16, 2
POISON = 0xA5


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def rotary(dim: int) -> Rotary:
    """Half order, base 1e6."""
    half = torch.arange(dim // 2)
    return Rotary(torch.stack((half, half + dim // 2), -1), 1e6 ** (-half.to(torch.float64) / (dim // 2)), 1.0)


def key_bias(dim: int, pairs: int, size: float = 200.0) -> KeyBias:
    """A bias of ``size`` on ``pairs`` rotary pairs, other ones in each head."""
    bias = torch.zeros(HEADS, dim)
    for head in range(HEADS):
        chosen = torch.arange(pairs) + (head * (dim // 2 - pairs)) // 2
        values = draw(2, pairs, seed=5 + head, dtype=torch.float32).cpu()
        bias[head, chosen], bias[head, chosen + dim // 2] = size * values
    return KeyBias(bias.to(DEVICE), rotary(dim))


def dense(dim: int, heads: int | None = None) -> Tensor:
    """A random orthonormal matrix, or one for each of ``heads``."""
    shape = (dim, dim) if heads is None else (heads, dim, dim)
    return torch.linalg.qr(draw(*shape, seed=9, dtype=torch.float32).cpu())[0].to(DEVICE)


@dataclass
class Case:
    """What is stored: widths, rotations, a bias on ``pairs`` rotary pairs, ``centroids`` (1: a static mean)."""

    dim: int = 64
    bits: tuple[int, int] = (4, 4)
    rotations: tuple[Rotation, Rotation] = (1, 1)
    pairs: int = 0
    centroids: int = 0
    books: int = 1
    tokens: int = 20
    pages: int = 4
    dtype: torch.dtype = torch.bfloat16
    spec: StoreSpec = field(init=False)

    def __post_init__(self) -> None:
        indexed = self.centroids if self.centroids > 1 else 0
        layout = PageLayout(
            HEADS,
            self.dim,
            PAGE,
            *self.bits,
            self.dtype,
            key_centroids=indexed,
            value_centroids=indexed,
            books=self.books,
        )
        books = [
            draw(HEADS, self.centroids, self.dim, seed=7 + i, dtype=torch.float32) if self.centroids else None
            for i in range(2)
        ]
        key, value = (SideSpec(r, book) for r, book in zip(self.rotations, books, strict=True))
        self.spec = StoreSpec(layout, key, value, key_bias(self.dim, self.pairs) if self.pairs else None)

    def pool(self) -> Tensor:
        pool = self.spec.layout.allocate(self.pages, DEVICE)
        return pool.fill_(POISON)

    def vectors(self) -> tuple[Tensor, Tensor]:
        shape = (self.tokens, HEADS, self.dim)
        return draw(*shape, seed=1, dtype=self.dtype), draw(*shape, seed=2, dtype=self.dtype)

    def slots(self) -> Tensor:
        """Scattered over permuted, partly filled pages; the fourth token is skipped."""
        order = torch.randperm(self.pages * PAGE, generator=torch.Generator().manual_seed(3))[: self.tokens]
        order[3] = -1
        return order.to(DEVICE)

    def positions(self) -> Tensor:
        return torch.arange(self.tokens, device=DEVICE) * 7 + 100

    def indices(self) -> list[Tensor | None]:
        if self.centroids < 2:
            return [None, None]
        draws = torch.Generator().manual_seed(4)
        shape = (self.tokens, self.books)
        return [torch.randint(0, self.centroids, shape, generator=draws).to(DEVICE) for _ in range(2)]


def filled(case: Case, tables: list[list[int]], lengths: tuple[int, ...]) -> Tensor:
    """A pool in which sequence i has ``lengths[i]`` random tokens in pages ``tables[i]``, as specified."""
    pool = case.pool()
    for i, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        positions = torch.arange(length, device=DEVICE)
        key = draw(length, HEADS, case.dim, seed=20 + i, dtype=torch.float32)
        if case.spec.key_bias is not None:
            key = key + rotated_bias(case.spec.key_bias.bias, case.spec.key_bias.rotary, positions)
        value = draw(length, HEADS, case.dim, seed=40 + i)
        index = [None if one is None else one[:1].expand(length, -1).contiguous() for one in case.indices()]
        slots = slots_of(torch.tensor(table, device=DEVICE), length, PAGE)
        quantize_store(key.to(case.dtype), value, case.spec.layout.view(pool), slots, case.spec, positions, *index)
    return pool

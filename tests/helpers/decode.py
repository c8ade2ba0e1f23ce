"""A decode step in small: sequences of given keys and values in poisoned, permuted pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from helpers.pages import DEVICE
from sawbench_kernels.codec import encode
from sawbench_kernels.paged_decode import DecodeSpec, PagedDecode, naive
from sawbench_kernels.pages import PageLayout, slots_of, store

POISON = 0xFF
"""As bytes of a (scale, min) pair or of 16-bit values: NaN."""


@dataclass
class Step:
    """``lengths[b]`` tokens of sequence b, stored by the naive codec; everything else in the pool is poison."""

    dim: int = 64
    group: int = 4
    heads: int = 2
    page: int = 16
    bits: tuple[int, int] = (4, 4)
    lengths: Sequence[int] = (37, 1, 16)
    options: dict[str, Any] = field(default_factory=dict)
    layout_options: dict[str, int] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    shape_key: Any = None
    shape_value: Any = None

    def __post_init__(self) -> None:
        self.draws = torch.Generator().manual_seed(0)
        self.layout = PageLayout(self.heads, self.dim, self.page, *self.bits, dtype=self.dtype, **self.layout_options)
        self.spec = DecodeSpec(self.layout, self.dim**-0.5, **self.options)
        width = max(1, max(-(-n // self.page) for n in self.lengths))
        self.pages = width * len(self.lengths) + 2
        order = torch.randperm(self.pages, generator=self.draws)[: width * len(self.lengths)]
        self.table = order.view(len(self.lengths), width).to(DEVICE, torch.int32)
        self.pool = self.layout.allocate(self.pages, DEVICE).fill_(POISON)
        self.planes = self.layout.view(self.pool)
        self.counts = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
        self.q = self.normal(len(self.lengths), self.heads * self.group, self.dim).to(self.dtype)
        for b, length in enumerate(self.lengths):
            self._fill(b, length)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draws).to(DEVICE)

    def _fill(self, b: int, length: int) -> None:
        shape = (length, self.heads, self.dim)
        if not length:
            return
        key, value = (self._shaped(self.normal(*shape), f) for f in (self.shape_key, self.shape_value))
        rows = encode(key, "key", self.bits[0]) | encode(value, "value", self.bits[1])
        for side in ("key", "value"):
            count = getattr(self.layout, f"{side}_centroids")
            if count:
                index = torch.randint(0, count, (length, self.layout.books), generator=self.draws)
                rows[f"{side}.index"] = index.to(DEVICE)
        store(self.planes, slots_of(self.table[b], length, self.page), rows)

    def _shaped(self, x: Tensor, shape: Any) -> Tensor:
        return (x if shape is None else shape(x)).to(self.dtype)

    def run(self, splits: int = 2, max_length: int = 512) -> Tensor:
        return PagedDecode(self.spec, DEVICE, max_length, splits)(self.q, self.planes, self.table, self.counts)

    def reference(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return naive.paged_decode(self.q, self.planes, self.table, self.counts, self.spec, dtype)

    def error(self, splits: int = 2) -> float:
        """Relative error of all outputs together; infinite where anything is not finite."""
        out, reference = self.run(splits).to(torch.float64), self.reference()
        if not torch.isfinite(out).all():
            return float("inf")
        return float((out - reference).norm() / reference.norm().clamp_min(1e-30))

"""What a KV-cache method is made of, and what a part learns when it meets a model.

A part in a configuration is a small frozen dataclass; ``check`` refuses a model shape it cannot serve, before weights
load, and ``bind`` makes the per-layer object that does the work. Every tensor of K or V is [B, T, H, D] here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from sawbench.core.shape import KVShape
from sawbench_kernels.key_bias import Rotary

if TYPE_CHECKING:
    from sawbench.methods.method import BoundSide
    from sawbench.methods.store import SideStore

SideName = Literal["key", "value"]
Planes = dict[str, Tensor]
"""Stored bytes by name, each with leading dimensions [B, T]."""


@dataclass(frozen=True)
class ModelFacts:
    """What parts may know of a model.

    ``key_bias`` holds one float32 [H, D] a layer, or None where keys have no bias. ``bias_obstacle`` says, by name,
    why ``R_j b`` cannot be split off (a norm between bias and RoPE, frequencies that depend on the position).
    """

    name: str
    shape: KVShape
    rotary: Rotary | None = None
    key_bias: tuple[Tensor, ...] | None = None
    bias_obstacle: str | None = None


@dataclass(frozen=True)
class Site:
    """One side of one layer, with the tensors that calibration found for it."""

    facts: ModelFacts
    layer: int
    side: SideName
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class LayerSample:
    """Calibration data of one layer: post-RoPE ``query`` [T, Hq, D] and ``key`` [T, H, D], ``value`` [T, H, D] in
    float32, and the output projection's ``output_weight`` [hidden, Hq * D]. Attention among them: scores times
    ``scaling`` (None: 1 / sqrt(D)), in stretches of ``window`` tokens that do not see each other (None: one)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output_weight: Tensor
    scaling: float | None = None
    window: int | None = None

    def side(self, name: SideName) -> Tensor:
        return self.key if name == "key" else self.value


class Part(Protocol):
    """What transforms, quantizers and offsets share."""

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raise UserError where this part cannot serve the model. Called before weights load (no key bias yet)."""
        ...


class Calibrated(Protocol):
    """A part that learns tensors from text before it can be bound. It may have a method ``settle(tensors, side)`` too:
    tensors keyed ``side.layer.name`` that are decided once those of all layers, K and V, are known."""

    calibration_tokens: int
    """Tokens of text that it wants."""

    def fit(self, sample: LayerSample, side: SideName, seed: int) -> dict[str, Tensor]:
        """Tensors of one side of one layer, by name; they come back in ``Site.tensors``."""
        ...

    def synthetic(self, facts: ModelFacts, side: SideName, generator: torch.Generator) -> dict[str, Tensor]:
        """Tensors of the right shapes for a model with random weights (throughput studies); marked as synthetic."""
        ...


class BoundTransform(Protocol):
    """A linear map R of a head's dimensions, orthonormal unless it says otherwise."""

    @property
    def rotation(self) -> int | Tensor:
        """R as kernels take it: the order of a block Hadamard (1: none), or a dense matrix [D, D]."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """``on_key`` / ``on_value``: x R, [B, T, H, D] as it is stored."""
        ...

    def query(self, query: Tensor) -> Tensor:
        """``on_query``: [B, Hq, T, D] such that q . k survives."""
        ...

    def inverse(self, x: Tensor) -> Tensor:
        """``on_output``: back from the stored space, any [..., D]."""
        ...

    def shared(self) -> Mapping[str, Tensor]:
        """Tensors held once for the model (a learned matrix), by name."""
        ...


class BoundOffset(Protocol):
    """What is subtracted before transform and quantizer, and what little of it a token must store."""

    def describe(self, x: Tensor) -> Planes:
        """What token by token must be stored (an index of a centroid), from x [B, T, H, D]; often nothing."""
        ...

    def value(self, planes: Planes, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The offset, broadcastable to [B, T, H, D], for stored tokens at ``positions`` [B, T]; None is zero."""
        ...

    @property
    def centroids(self) -> Tensor | None:
        """Centroids float32 [books, C, heads, D] that kernels add back by a token's index (C = 1: a mean, no index)."""
        ...

    def shared(self) -> Mapping[str, Tensor]:
        """Tensors held once for the model (codebooks, means): counted apart from the bits of a token."""
        ...


class Quantizer(Part, Protocol):
    """Numbers to bytes, as a configuration names it."""

    @property
    def stepwise(self) -> bool:
        """What a token sees of the others depends on how many were written at once: answers are replayed one by one."""
        ...

    @property
    def unservable(self) -> str:
        """Why its bytes fit no uniform pages; empty where they do."""
        ...

    def bind(self, site: Site) -> "BoundQuantizer":
        """The quantizer of one side of one layer."""
        ...


class BoundQuantizer(Protocol):
    """Numbers to bytes and back, on one side of one layer."""

    @property
    def span(self) -> int:
        """Neighbouring tokens that are encoded together: 1, or a group that shares a range."""
        ...

    def bytes_per_vector(self, head_dim: int) -> float:
        """Bytes of one head's vector of one token once it is encoded; the mean where heads or tokens share them."""
        ...

    def encode(self, x: Tensor) -> Planes:
        """Planes of x [B, T, H, D], T a multiple of ``span``, with leading dimensions [B, T / span]."""
        ...

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        """The approximation [B, T, H, D]."""
        ...

    def new_store(self, side: "BoundSide") -> "SideStore":
        """An empty store for the rows of a batch."""
        ...

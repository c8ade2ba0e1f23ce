"""A KV-cache method: for K and for V an offset, a transform and a quantizer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sawbench.methods.offsets import NoOffset
from sawbench.methods.parts import (
    BoundOffset,
    BoundQuantizer,
    BoundTransform,
    Calibrated,
    LayerSample,
    ModelFacts,
    Planes,
    Quantizer,
    SideName,
    Site,
)
from sawbench.methods.quantizers import Raw
from sawbench.methods.store import SideStore, TokenStore
from sawbench.methods.transforms import Identity

SIDES: tuple[SideName, SideName] = ("key", "value")


@dataclass(frozen=True)
class Side:
    """How one of K and V is stored: x -> transform(x - offset) -> quantizer."""

    offset: Any = field(default_factory=NoOffset)
    transform: Any = field(default_factory=Identity)
    quantizer: Quantizer = field(default_factory=Raw)

    def parts(self) -> tuple[Any, ...]:
        nested = getattr(self.transform, "parts", (self.transform,))
        return (self.offset, *nested, self.quantizer)

    def check(self, facts: ModelFacts, side: SideName) -> None:
        for part in self.parts():
            part.check(facts, side)

    def calibrated(self) -> Iterator[Calibrated]:
        return (part for part in self.parts() if hasattr(part, "fit"))

    def bind(self, site: Site) -> "BoundSide":
        offset, transform = self.offset.bind(site), self.transform.bind(site)
        return BoundSide(offset, transform, self.quantizer.bind(site), site.facts.shape.head_dim, site.device)


@dataclass(frozen=True)
class BoundSide:
    """One side of one layer, ready to encode and decode [B, T, H, D]."""

    offset: BoundOffset
    transform: BoundTransform
    quantizer: BoundQuantizer
    head_dim: int
    device: torch.device

    def encode(self, x: Tensor, positions: Tensor) -> Planes:
        """Bytes to store for x [B, T, H, D] at ``positions`` [B, T], T a multiple of the quantizer's span."""
        planes = self.offset.describe(x)
        return planes | self.quantizer.encode(self.reduced(x, planes, positions))

    def residual(self, x: Tensor, positions: Tensor) -> Tensor:
        """What meets the quantizer: x minus its offset, transformed."""
        return self.reduced(x, self.offset.describe(x), positions)

    def reduced(self, x: Tensor, planes: Planes, positions: Tensor) -> Tensor:
        """The same where the offset's ``planes`` are known. The subtraction is at least float32: it cancels almost all
        of a large bias."""
        wide = torch.promote_types(x.dtype, torch.float32)
        offset = self.offset.value(planes, positions, wide)
        return self.transform.forward(x if offset is None else x.to(wide) - offset)

    def stored(self, planes: Planes, dtype: torch.dtype) -> Tensor:
        """What is stored, [B, T, H, D] in the transformed space and without the offset."""
        return self.quantizer.decode(planes, self.head_dim, dtype)

    def decode(self, planes: Planes, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The approximation of x itself, [B, T, H, D]."""
        return self.read(TokenStore(self, planes), positions, dtype)

    def new_store(self) -> SideStore:
        """An empty store for the rows of a batch."""
        return self.quantizer.new_store(self)

    def token_bytes(self, heads: int) -> float:
        """Bytes that a token of ``heads`` heads takes once it is encoded, counted on what an encoding really makes."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, self.quantizer.span, heads, self.head_dim, generator=generator)
        where = torch.zeros(1, self.quantizer.span, dtype=torch.int32, device=self.device)
        planes = self.encode(x.to(self.device), where)
        return sum(plane.nbytes for plane in planes.values()) / self.quantizer.span

    def read(self, store: SideStore, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The approximation of x itself, [B, S, H, D], for all tokens of a store."""
        x = self.transform.inverse(store.values(dtype))
        offset = store.offset(positions, dtype)
        return x if offset is None else x + offset.to(dtype)

    def shared_tensors(self) -> Iterator[Tensor]:
        """What is held once for the model: codebooks, means, rotations."""
        yield from self.offset.shared().values()
        yield from self.transform.shared().values()


@dataclass(frozen=True)
class BoundLayer:
    """Both sides of one layer."""

    key: BoundSide
    value: BoundSide

    def shared_tensors(self) -> Iterator[Tensor]:
        yield from self.key.shared_tensors()
        yield from self.value.shared_tensors()


@dataclass(frozen=True)
class KVMethod:
    """A named method. ``options`` are the knobs of its YAML that the parts interpolate; kept for the record."""

    name: str
    key: Side
    value: Side
    options: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""

    def sides(self) -> tuple[tuple[SideName, Side], ...]:
        return (("key", self.key), ("value", self.value))

    def check(self, facts: ModelFacts) -> None:
        """Raise UserError where the method cannot serve the model; needs no weights."""
        for name, side in self.sides():
            side.check(facts, name)

    @property
    def stepwise(self) -> bool:
        """Whether answers must be replayed token by token to show what decoding shows."""
        return any(side.quantizer.stepwise for _, side in self.sides())

    @property
    def unservable(self) -> str:
        """Why its bytes fit no uniform pages, the first reason of K or V; empty where a paged engine serves it."""
        return next((side.quantizer.unservable for _, side in self.sides() if side.quantizer.unservable), "")

    @property
    def calibration_tokens(self) -> int:
        """Tokens of text that calibration wants; 0 where the method needs none."""
        return max((part.calibration_tokens for _, side in self.sides() for part in side.calibrated()), default=0)

    def bind(self, facts: ModelFacts, tensors: Mapping[str, Tensor], device: torch.device) -> list[BoundLayer]:
        """One BoundLayer a layer; ``tensors`` are those of a calibration artifact, keyed ``side.layer.name``."""
        self.check(facts)
        return [
            BoundLayer(*(side.bind(self._site(facts, tensors, device, name, layer)) for name, side in self.sides()))
            for layer in range(facts.shape.layers)
        ]

    def fit(self, layer: int, sample: LayerSample, seed: int) -> dict[str, Tensor]:
        """Calibration tensors of one layer, keyed as ``bind`` wants them."""
        return {
            f"{name}.{layer}.{key}": tensor.contiguous()
            for name, side in self.sides()
            for part in side.calibrated()
            for key, tensor in part.fit(sample, name, seed).items()
        }

    def synthetic(self, facts: ModelFacts, seed: int) -> dict[str, Tensor]:
        """Seeded tensors of the right shapes in the place of calibrated ones, for a model with random weights."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            f"{name}.{layer}.{key}": tensor
            for layer in range(facts.shape.layers)
            for name, side in self.sides()
            for part in side.calibrated()
            for key, tensor in part.synthetic(facts, name, generator).items()
        }
        return self.settled(drawn)

    def settled(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``tensors`` of all layers with what can be decided only when all are known (which heads get more bits)."""
        parts = ((part, name) for name, side in self.sides() for part in side.calibrated() if hasattr(part, "settle"))
        decided = [part.settle(tensors, name) for part, name in parts]
        return {**tensors, **{key: tensor for more in decided for key, tensor in more.items()}}

    @staticmethod
    def _site(
        facts: ModelFacts, tensors: Mapping[str, Tensor], device: torch.device, side: SideName, layer: int
    ) -> Site:
        prefix = f"{side}.{layer}."
        own = {key.removeprefix(prefix): t.to(device) for key, t in tensors.items() if key.startswith(prefix)}
        return Site(facts, layer, side, own, device)

"""Rotations of a head: identity, block-diagonal Hadamard (BDR), and chains. Learned ones: hessian.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sawbench.core.errors import UserError
from sawbench.methods.parts import BoundTransform, ModelFacts, SideName, Site
from sawbench_kernels.hadamard.naive import hadamard


@dataclass(frozen=True)
class Identity:
    """No rotation."""

    def check(self, facts: ModelFacts, side: SideName) -> None:
        pass

    def bind(self, site: Site) -> "Identity":
        return self

    @property
    def rotation(self) -> int | Tensor:
        return 1

    def forward(self, x: Tensor) -> Tensor:
        return x

    query = inverse = forward

    def shared(self) -> Mapping[str, Tensor]:
        return {}


def auto_order(head_dim: int) -> int:
    """Largest power of two that divides ``head_dim``."""
    return head_dim & -head_dim


def legal_orders(head_dim: int) -> list[int]:
    """Block orders of a rotation: powers of two from 2 that divide ``head_dim``."""
    return [order for order in (2**i for i in range(1, head_dim.bit_length())) if head_dim % order == 0]


@dataclass(frozen=True)
class BlockHadamard:
    """BDR: every contiguous block of ``order`` dimensions times an orthonormal Hadamard matrix (paper, BDR).

    ``order`` auto is the largest power of two that divides head_dim.
    """

    order: int | Literal["auto"] = "auto"

    def resolve(self, head_dim: int) -> int:
        return auto_order(head_dim) if self.order == "auto" else self.order

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError where the order is no power of two that divides head_dim."""
        legal = legal_orders(facts.shape.head_dim)
        if self.resolve(facts.shape.head_dim) not in legal:
            raise UserError(
                f"method.options.order={self.order} does not rotate {facts.name}, whose head_dim is "
                f"{facts.shape.head_dim}; legal orders: {', '.join(map(str, legal)) or 'none'}"
            )

    def bind(self, site: Site) -> "BoundHadamard":
        return BoundHadamard(self.resolve(site.facts.shape.head_dim))


@dataclass(frozen=True)
class BoundHadamard:
    """The Hadamard blocks of a known order: symmetric, so forward, query and inverse are one map."""

    order: int

    @property
    def rotation(self) -> int | Tensor:
        return self.order

    def forward(self, x: Tensor) -> Tensor:
        """At least float32: rounding to the model's bf16 before quantizing is the authors' code's, not the method's."""
        return hadamard(x.to(torch.promote_types(x.dtype, torch.float32)), self.order)

    query = inverse = forward

    def shared(self) -> Mapping[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Chain:
    """One transform, then another: x -> x R1 R2."""

    first: Any
    second: Any

    @property
    def parts(self) -> tuple[Any, Any]:
        return self.first, self.second

    def check(self, facts: ModelFacts, side: SideName) -> None:
        for part in self.parts:
            part.check(facts, side)

    def bind(self, site: Site) -> "BoundChain":
        return BoundChain(tuple(part.bind(site) for part in self.parts), site.facts.shape.head_dim)


@dataclass(frozen=True)
class BoundChain:
    """Bound transforms one after another; kernels see their product, of ``head_dim`` dimensions."""

    parts: tuple[BoundTransform, ...]
    head_dim: int

    @property
    def rotation(self) -> int | Tensor:
        device = next((t.device for t in self.shared().values()), torch.device("cpu"))
        return self.forward(torch.eye(self.head_dim, dtype=torch.float64, device=device)).to(torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part.forward(x)
        return x

    def query(self, query: Tensor) -> Tensor:
        for part in self.parts:
            query = part.query(query)
        return query

    def inverse(self, x: Tensor) -> Tensor:
        for part in reversed(self.parts):
            x = part.inverse(x)
        return x

    def shared(self) -> Mapping[str, Tensor]:
        return {f"{i}.{name}": t for i, part in enumerate(self.parts) for name, t in part.shared().items()}

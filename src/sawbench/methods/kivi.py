"""KIVI (arXiv 2402.02750): keys have outlier channels, so that a range belongs to a channel, over a group of tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sawbench.core.errors import UserError
from sawbench.methods.parts import ModelFacts, Planes, SideName, Site
from sawbench.methods.quantizers import AffineInt, Storage


@dataclass(frozen=True)
class PerChannel:
    """Asymmetric integers of ``bits`` bits, one scale and zero for each head, channel and ``group`` tokens in a row."""

    bits: int = 4
    group: int = 32
    storage: Storage = "fp16"

    stepwise: ClassVar[bool] = True
    unservable: ClassVar[str] = "a range spans tokens that are not there yet"

    @property
    def span(self) -> int:
        return self.group

    @property
    def integers(self) -> AffineInt:
        """What a channel's group becomes."""
        return AffineInt(self.bits, "head", self.storage)

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError for an unknown width or storage, or a group of fewer than two tokens."""
        self.integers.check(facts, side)
        if self.group < 2:
            raise UserError(f"method.options.group={self.group}: a range per channel spans at least 2 tokens")

    def bind(self, site: Site) -> "PerChannel":
        return self

    def bytes_per_vector(self, head_dim: int) -> float:
        return head_dim * self.integers.bytes_per_vector(self.group) / self.group

    def encode(self, x: Tensor) -> Planes:
        """Planes ``codes`` uint8 [B, T / group, H, D, bytes] and ``pair`` [B, T / group, H, D, 1, 2] of x [B, T, H, D],
        T a multiple of ``group``."""
        return self.integers.encode(by_channel(x, self.group))

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        return by_token(self.integers.decode(planes, self.group, dtype))


def by_channel(x: Tensor, group: int) -> Tensor:
    """[B, T, H, D] to [B, T / group, H, D, group]."""
    return x.unflatten(1, (-1, group)).permute(0, 1, 3, 4, 2)


def by_token(x: Tensor) -> Tensor:
    """[B, N, H, D, group] back to [B, T, H, D]."""
    return x.permute(0, 1, 4, 2, 3).flatten(1, 2)

"""Kitty (as the paper compares with it): 2-bit keys per channel, a page's largest channels at twice the bits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sawbench.core.errors import UserError
from sawbench.methods.kivi import by_channel, by_token
from sawbench.methods.parts import ModelFacts, Planes, SideName, Site
from sawbench.methods.quantizers import AffineInt, Storage


@dataclass(frozen=True)
class BoostedChannels:
    """Per channel over ``page`` tokens: ``share`` of a head's channels, those of largest magnitude in the page, with
    ``high`` bits, the others with ``low``. Which ones they are is stored, an index each."""

    low: int = 2
    high: int = 4
    share: float = 0.125
    page: int = 128
    storage: Storage = "fp16"

    stepwise: ClassVar[bool] = True
    unservable: ClassVar[str] = "pages of one size hold channels of two widths, other ones in each"

    @property
    def span(self) -> int:
        return self.page

    def widths(self, head_dim: int) -> tuple[tuple[str, AffineInt, int], ...]:
        """Name, integers and number of the plain channels, then of the boosted ones."""
        boosted = round(self.share * head_dim)
        counts = {"low": head_dim - boosted, "high": boosted}
        bits = {"low": self.low, "high": self.high}
        return tuple((at, AffineInt(bits[at], "head", self.storage), counts[at]) for at in counts if counts[at])

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError for a share that is none, a page of fewer than two tokens, or unknown widths or storage."""
        if not 0 <= self.share <= 1:
            raise UserError(f"method.options.share={self.share} is no share of the channels: 0 to 1")
        if self.page < 2:
            raise UserError(f"method.options.page={self.page}: a range per channel spans at least 2 tokens")
        for _, integers, _ in self.widths(facts.shape.head_dim):
            integers.check(facts, side)

    def bind(self, site: Site) -> "BoostedChannels":
        return self

    def bytes_per_vector(self, head_dim: int) -> float:
        widths = self.widths(head_dim)
        channels = sum(count * integers.bytes_per_vector(self.page) for _, integers, count in widths)
        indices = round(self.share * head_dim) * index_dtype(head_dim).itemsize
        return (channels + indices) / self.page

    def encode(self, x: Tensor) -> Planes:
        """Planes ``codes.low`` / ``pair.low`` and ``codes.high`` / ``pair.high``, [B, T / page, H, channels, ...], and
        ``index`` [B, T / page, H, boosted] of x [B, T, H, D], T a multiple of ``page``."""
        channels = by_channel(x, self.page)
        head_dim = x.shape[-1]
        boosted = channels.abs().amax(-1).topk(round(self.share * head_dim)).indices.sort().values
        order = plain_first(boosted, head_dim)
        ordered = channels.take_along_dim(order[..., None], -2)
        planes: Planes = {"index": boosted.to(index_dtype(head_dim))}
        widths = self.widths(head_dim)
        for (at, integers, _), part in zip(widths, ordered.split([w[2] for w in widths], -2), strict=True):
            planes |= {f"{name}.{at}": plane for name, plane in integers.encode(part).items()}
        return planes

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        parts = [
            integers.decode({name: planes[f"{name}.{at}"] for name in ("codes", "pair")}, self.page, dtype)
            for at, integers, _ in self.widths(head_dim)
        ]
        places = plain_first(planes["index"].to(torch.int64), head_dim).argsort(-1)
        return by_token(torch.cat(parts, -2).take_along_dim(places[..., None], -2))


def index_dtype(head_dim: int) -> torch.dtype:
    return torch.uint8 if head_dim <= 256 else torch.int16


def plain_first(boosted: Tensor, head_dim: int) -> Tensor:
    """All channels, int64 [..., D]: those not in ``boosted`` [..., n], then those in it, both ascending."""
    chosen = torch.zeros(*boosted.shape[:-1], head_dim, dtype=torch.uint8, device=boosted.device)
    return chosen.scatter_(-1, boosted, 1).argsort(dim=-1, stable=True)

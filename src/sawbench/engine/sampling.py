"""Per-request sampling: a draw depends on its own logits, its own seed and its own step, never on batch mates."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sawbench.core.engine import Sampling


def uniforms(sampling: Sampling) -> Tensor:
    """The uniform numbers, float64 [max_new_tokens] in [0, 1), that a request's draws will use, from its seed alone."""
    generator = torch.Generator().manual_seed(sampling.seed)
    return torch.rand(sampling.max_new_tokens, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Knobs:
    """Sampling parameters of a batch, each [B] on the device of the logits."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor

    @classmethod
    def of(cls, batch: Sequence[Sampling], device: torch.device) -> "Knobs":
        rows = [(s.temperature, s.top_p, s.top_k) for s in batch]
        temperature, top_p, top_k = (torch.tensor(column, device=device) for column in zip(*rows, strict=True))
        return cls(temperature.double(), top_p.double(), top_k)


def draw(logits: Tensor, knobs: Knobs, uniform: Tensor) -> Tensor:
    """Token ids int64 [B] from logits [B, V]: argmax at temperature 0, else the inverse of the distribution's CDF.

    Tokens are ordered by probability; top-k keeps the first k, top-p then the shortest beginning whose mass reaches p
    (always one token). ``uniform`` float64 [B] picks a token by its place in what is kept. No host synchronisation.
    """
    greedy = logits.argmax(-1)
    hot = torch.where(knobs.temperature > 0, knobs.temperature, 1.0)[:, None]
    ordered, order = (logits.double() / hot).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    in_top_k = (rank < knobs.top_k[:, None]) | (knobs.top_k[:, None] <= 0)
    mass = ordered.masked_fill(~in_top_k, -torch.inf).softmax(-1)
    before = mass.cumsum(-1) - mass
    mass = mass.masked_fill((before >= knobs.top_p[:, None]) & (rank > 0), 0.0)
    cumulative = mass.cumsum(-1)
    place = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    last = (mass > 0).sum(-1, keepdim=True) - 1
    drawn = order.gather(-1, torch.minimum(place, last))[:, 0]
    return torch.where(knobs.temperature > 0, drawn, greedy)


def text_until(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """``text`` cut before the earliest stop string, and whether there was one."""
    found = [at for at in (text.find(stop) for stop in stops if stop) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)

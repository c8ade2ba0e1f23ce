"""Per-request sampling: a draw depends on its own logits, its own seed and its own step, never on batch mates."""

import torch
from torch import Tensor

from sawbench.core.engine import Sampling

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: spreads (seed, step) over the generator's seeds


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [V] at the request's temperature, with all outside top-k and then top-p at -inf."""
    scaled = logits / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scaled.sort(descending=True)
        probabilities = ordered.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= sampling.top_p  # the first token always stays
        scaled = scaled.masked_fill(torch.zeros_like(beyond).scatter_(0, order, beyond), -torch.inf)
    return scaled


def draw(logits: Tensor, sampling: Sampling, step: int) -> Tensor:
    """Token id (int64 scalar tensor) from logits [V]: argmax at temperature 0, else the inverse-CDF draw of step."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    generator = torch.Generator().manual_seed((sampling.seed * GOLDEN + step) % (1 << 63))
    uniform = torch.rand((), generator=generator, dtype=torch.float64).to(logits.device)
    cumulative = filtered(logits.double(), sampling).softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative, uniform * cumulative[-1], right=True).clamp_max(len(logits) - 1)


def text_until(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """``text`` cut before the earliest stop string, and whether there was one."""
    found = [at for at in (text.find(stop) for stop in stops if stop) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)

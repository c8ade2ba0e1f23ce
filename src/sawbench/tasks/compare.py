"""Two distributions over the same tokens: what a method's cache did to every prediction."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128  # rows whose log-probabilities are held at once: 128 x 152k x 8 bytes is 150 MB


@dataclass(frozen=True)
class Comparison:
    """By answer token: ``kl`` KL(reference || method) in nats, ``agree`` whether both have one argmax, and the negative
    log-likelihoods (nats) of the token under each. None where logits are such that the number is not finite."""

    kl: list[float | None]
    agree: list[bool]
    reference_nll: list[float | None]
    nll: list[float | None]

    @property
    def divergence(self) -> int | None:
        """First position where the argmax differs; None where it never does."""
        return self.agree.index(False) if False in self.agree else None


def compare(reference: Tensor, method: Tensor, answer: tuple[int, ...]) -> Comparison:
    """Compare logits [T, V] that predict ``answer`` (T tokens); log-softmax and sums in float64."""
    blocks = [torch.stack(_block(*rows)) for rows in _blocks(reference, method, answer)]
    kl, agree, reference_nll, nll = torch.cat(blocks, 1).tolist()
    return Comparison(_finite(kl), [bool(a) for a in agree], _finite(reference_nll), _finite(nll))


def _blocks(reference: Tensor, method: Tensor, answer: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    target = torch.tensor(answer, device=reference.device)
    return zip(reference.split(BLOCK), method.split(BLOCK), target.split(BLOCK), strict=True)


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _block(reference: Tensor, method: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p, q = reference.double().log_softmax(-1), method.double().log_softmax(-1)
    # -inf - -inf is NaN where both forbid a token; it carries no mass
    kl = torch.where(p == -torch.inf, 0.0, p.exp() * (p - q)).sum(-1)
    chosen = target[:, None]
    reference_nll, nll = (-log.gather(-1, chosen).squeeze(-1) for log in (p, q))
    return kl, (p.argmax(-1) == q.argmax(-1)).double(), reference_nll, nll

"""The key-bias split: the part of a key that depends on its position alone is never stored.

A key after RoPE is ``R_j (W x + b)`` at position j. Only ``R_j W x`` is quantized; ``R_j b`` is subtracted before and
its score ``q . R_j b`` is added after. What makes the split exact is that both sides use the *same* ``R_j``: angles
``j * inv_freq`` are taken in float64 and rounded once, as cos and sin, to float32 (a float32 product of a position
near 131,072 errs by 8e-3 rad, which a bias of 200 turns into a logit error above 1). Kernels read this table too.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rotary:
    """How a model turns a head by its position.

    ``pairs`` int64 [R, 2]: dimensions (a, b) that turn together, a' = a cos - b sin, b' = b cos + a sin (half or
    interleaved order, partial rotary: whatever the model has). ``inv_freq`` float64 [R] in rad per position.
    ``scaling``: the model's factor on cos and sin (1 unless its RoPE scaling has an attention factor).
    """

    pairs: Tensor
    inv_freq: Tensor
    scaling: float


@lru_cache(maxsize=16)
def cos_sin_table(rotary: Rotary, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [length, R], of positions 0 to length - 1; the model's scaling is in them."""
    positions = torch.arange(length, device=device, dtype=torch.float64)
    angles = positions[:, None] * rotary.inv_freq.to(device, torch.float64)
    return (rotary.scaling * angles.cos()).to(torch.float32), (rotary.scaling * angles.sin()).to(torch.float32)


def cos_sin(rotary: Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the table, float32 [..., R], for integer ``positions`` [...]. The table grows by powers of two."""
    longest = int(positions.max()) + 1 if positions.numel() else 1
    cos, sin = cos_sin_table(rotary, 1 << max(longest - 1, 1).bit_length(), positions.device)
    return cos[positions], sin[positions]


def rotated_bias(bias: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
    """``R_j b``: float32 [..., H, D] for ``bias`` float32 [H, D] and ``positions`` [...] (float64 bias: float64).

    Dimensions outside ``pairs`` do not turn: their bias is the same at every position.
    """
    wide = torch.float64 if bias.dtype == torch.float64 else torch.float32
    cos, sin = (t.to(wide)[..., None, :] for t in cos_sin(rotary, positions))
    first, second = rotary.pairs.to(bias.device).unbind(-1)
    turned = bias.to(wide).expand(*positions.shape, *bias.shape).clone()
    a, b = bias[:, first].to(wide), bias[:, second].to(wide)
    turned[..., first] = a * cos - b * sin
    turned[..., second] = b * cos + a * sin
    return turned


def pair_energy(bias: Tensor, rotary: Rotary) -> Tensor:
    """Squared length [H, R] of ``bias`` [H, D] in each rotary pair."""
    return bias[:, rotary.pairs.to(bias.device)].square().sum(-1)


def enough_pairs(bias: Tensor, rotary: Rotary, left: float) -> int:
    """The fewest largest pairs, of 8, 16, 32, ..., without which no pair of any head is longer than ``left``."""
    return filled(int((pair_energy(bias, rotary) > left**2).sum(-1).max()))


def filled(pairs: int) -> int:
    """To how many the decode kernel fills its tables of ``pairs`` up: 8, 16, 32, ..."""
    return max(8, 1 << max(pairs - 1, 0).bit_length())


def split_bias(bias: Tensor, rotary: Rotary, pairs: int | None) -> Tensor:
    """The part of ``bias`` [H, D] that the split takes out of the key: all of it, or the ``pairs`` rotary pairs of
    largest energy of each head. Exact for any subset; the rest stays in the quantized key."""
    if pairs is None or pairs >= len(rotary.pairs):
        return bias
    chosen = pair_energy(bias, rotary).topk(pairs, -1).indices
    kept = torch.zeros_like(bias)
    for dims in rotary.pairs.to(bias.device).unbind(-1):
        index = dims[chosen]
        kept.scatter_(1, index, bias.gather(1, index))
    return kept

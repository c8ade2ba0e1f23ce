"""Constants of a layer that a decode step reads: made once, in the form the kernels want."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from sawbench_kernels.hadamard.naive import hadamard_matrix
from sawbench_kernels.key_bias import Rotary, filled, pair_energy
from sawbench_kernels.paged_decode.naive import KeyBias

COARSE = 32
"""Positions between two rows of the coarse rotary table: every tile starts on a row."""
FINE = 64
"""Rows of the fine rotary table: the longest tile."""


@dataclass(frozen=True, eq=False)
class BiasTables:
    """The key-bias score of a tile as one small matrix product.

    ``q . R_j b = sum_i A_i cos(j theta_i) + B_i sin(j theta_i)`` over the rotary pairs whose bias is not zero. With
    j = j0 + t, (A, B) turned by j0 meet a constant table of cos(t theta), sin(t theta). The first half of R2 rows are
    the cosines of a head's pairs, the second their sines, each filled up with zero coefficients to a power of two.

    Attributes:
        dims: int32 [H, R2, 2], the two dimensions of a row's pair.
        coefficients: float32 [H, R2, 2] (u, v): the row's amplitude is ``q_a u + q_b v``.
        pair: int32 [H, R2], which rotary pair.
        fine: bf16 [H, 2, FINE, R2], high and low halves of cos and sin for t < FINE.
        coarse: float32 [n, R, 2], cos and sin at positions 0, COARSE, 2 COARSE, ...; the model's scaling is in them.
    """

    dims: Tensor
    coefficients: Tensor
    pair: Tensor
    fine: Tensor
    coarse: Tensor


def halves(x: Tensor) -> Tensor:
    """``x`` as bf16 [2, *x.shape]: the nearest bf16, and the nearest bf16 of what that leaves."""
    high = x.to(torch.bfloat16)
    return torch.stack((high, (x.to(torch.float64) - high.to(torch.float64)).to(torch.bfloat16)))


def slice_signs(bits: int, dim: int, order: int) -> tuple[Tensor, int]:
    """(matrix bf16 [W, W] of +-1 and 0 within a slice of the head, slices that a Hadamard block spans).

    A block Hadamard of a head is one inside each slice, then a butterfly across slices: over the highest bits of a
    dimension at 4 bits (slices are contiguous), over its lowest bit at 8 (slices are even and odd dimensions).
    """
    width = dim * bits // 16
    span = {4: max(1, order // width), 8: 2 if order > 1 else 1, 16: 1}[bits]
    inner = order // span
    block = hadamard_matrix(inner, torch.float64) * inner**0.5
    return torch.block_diag(*[block] * (width // inner)).to(torch.bfloat16), span


@lru_cache(maxsize=16)
def _coarse(rotary: Rotary, length: int, device: torch.device) -> Tensor:
    positions = torch.arange(0, length, COARSE, device=device, dtype=torch.float64)
    angles = positions[:, None] * rotary.inv_freq.to(device, torch.float64)
    return (rotary.scaling * torch.stack((angles.cos(), angles.sin()), -1)).to(torch.float32)


def bias_tables(split: KeyBias, max_length: int, device: torch.device) -> BiasTables:
    """Tables for sequences of at most ``max_length`` tokens, and the tile that the kernel fetches ahead.

    Dimensions that no pair turns add the same to every score of a head; softmax does not see them.
    """
    bias, rotary = split.bias.to(torch.float64).cpu(), split.rotary
    pairs = rotary.pairs.cpu()
    energy = pair_energy(bias, rotary)
    count = max(1, int((energy > 0).sum(1).max()))
    half = filled(count)
    # In the model's order: pairs that turn alike lie side by side in the coarse table.
    chosen = pad(energy.topk(count, 1).indices.sort(1).values, (0, half - count))  # [H, half]
    a, b = pad(bias[:, pairs].gather(1, chosen[:, :count, None].expand(-1, -1, 2)), (0, 0, 0, half - count)).unbind(-1)
    angle = torch.arange(FINE, dtype=torch.float64)[:, None] * rotary.inv_freq.cpu().to(torch.float64)
    cos, sin = (f.T[chosen].transpose(1, 2) for f in (angle.cos(), angle.sin()))  # [H, FINE, half]
    coefficients = torch.cat((torch.stack((a, b), -1), torch.stack((-b, a), -1)), 1)
    return BiasTables(
        dims=pairs[chosen].repeat(1, 2, 1).to(device, torch.int32),
        coefficients=coefficients.to(device, torch.float32),
        pair=chosen.repeat(1, 2).to(device, torch.int32),
        fine=halves(torch.cat((cos, sin), -1)).transpose(0, 1).contiguous().to(device),
        coarse=_coarse(rotary, max_length + FINE + COARSE, device),
    )

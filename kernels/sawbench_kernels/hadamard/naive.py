"""Block-diagonal orthonormal Hadamard transform (Sylvester order, no random signs: paper, section on BDR)."""

from functools import cache

import torch
from torch import Tensor


@cache
def _sylvester(order: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < order:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix * order**-0.5


def hadamard_matrix(order: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """The symmetric orthonormal matrix [order, order].

    Raises:
        ValueError: ``order`` is no power of two.
    """
    if order < 1 or order & order - 1:
        raise ValueError(f"a Hadamard matrix of order {order} is not built here: the order is a power of two")
    return _sylvester(order).to(device=device, dtype=dtype)


def hadamard(x: Tensor, order: int) -> Tensor:
    """Multiply each contiguous chunk of ``order`` dimensions of ``x`` [..., D] by the Hadamard matrix.

    Its own inverse. Arithmetic runs in float64 for float64 input, in float32 otherwise; the result has ``x``'s dtype.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    blocks = x.to(wide).unflatten(-1, (-1, order)) @ hadamard_matrix(order, wide, x.device)
    return blocks.flatten(-2).to(x.dtype)

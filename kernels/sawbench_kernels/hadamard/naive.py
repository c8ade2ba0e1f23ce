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
    Butterflies of stride 1, 2, 4, ... and one product with ``order ** -0.5``: a fixed order of roundings, which the
    kernels keep, so that a code never depends on where it was computed.

    Raises:
        ValueError: ``order`` is no power of two.
    """
    if order < 1 or order & order - 1:
        raise ValueError(f"a Hadamard matrix of order {order} is not built here: the order is a power of two")
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    for stride in (1 << bit for bit in range(order.bit_length() - 1)):
        first, second = y.unflatten(-1, (-1, 2, stride)).unbind(-2)
        y = torch.stack((first + second, first - second), -2).flatten(-3)
    return (y * order**-0.5).to(x.dtype)

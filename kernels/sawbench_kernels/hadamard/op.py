"""Checked entry to the block Hadamard kernel; :mod:`.naive` is the specification."""

import torch
from torch import Tensor

from sawbench_kernels.hadamard.kernel import hadamard_kernel
from sawbench_kernels.launch import check_aligned, check_vectors, legal_orders
from sawbench_kernels.registers import lanes_of


def hadamard(x: Tensor, order: int) -> Tensor:
    """Every block of ``order`` dimensions of ``x`` fp16 or bf16 [T, H, D] times the orthonormal Hadamard matrix.

    Its own inverse; float32 inside, ``x``'s dtype outside; bit-identical to naive.

    Raises:
        ValueError: a dtype, order, head size or stride that the kernel does not take.
    """
    check_vectors("x", x)
    if x.dim() != 3 or x.shape[-1] % 32 or not 32 <= x.shape[-1] <= 256:
        raise ValueError(f"x {tuple(x.shape)} is not [T, H, D] with D a multiple of 32 from 32 to 256")
    if order not in legal_orders(x.shape[-1]):
        raise ValueError(f"order {order} for head_dim {x.shape[-1]} is not one of {legal_orders(x.shape[-1])}")
    return block_hadamard(x, order)


@torch.library.custom_op("sawbench::hadamard", mutates_args=())
def block_hadamard(x: Tensor, order: int) -> Tensor:
    """The launch."""
    check_aligned("x", x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tokens, heads, dim = x.shape
    lanes = lanes_of(dim)
    rows = 32 // lanes
    if tokens:
        with torch.cuda.device_of(x):
            hadamard_kernel[(-(-tokens // rows), heads)](
                x, out, tokens, heads, x.stride(0), x.stride(1),
                ROWS=rows, LANES=lanes, N=dim // lanes, ORDER=order, NORM=order**-0.5,
                num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
    return out


@block_hadamard.register_fake
def _(x: Tensor, order: int) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)

"""Checked entry to kmeans_assign; :mod:`.naive` is the specification."""

from math import gcd

import torch
import triton
from torch import Tensor

from sawbench_kernels.kmeans_assign.kernel import nearest_kernel, products_kernel

MULTIPLE = 32
"""Head sizes are multiples of it."""
FEW = 64
"""So many tokens at most, as a small decode step has them, are too few to fill the card with large tiles."""


class KMeansAssign:
    """Nearest centroid of every token in each of ``books`` codebooks, for one side of one layer.

    Args:
        codebook: float [H_kv, C, D]; a codebook's centroids span the vectors of ``H_kv / books`` neighbouring heads.

    Raises:
        ValueError: ``books`` does not divide the heads, or the head size is no multiple of 32.
    """

    def __init__(self, codebook: Tensor, books: int, device: torch.device) -> None:
        heads, self.centroids, dim = codebook.shape
        if heads % books or dim % MULTIPLE:
            raise ValueError(f"books={books} must divide {heads} heads, and head_dim={dim} be a multiple of {MULTIPLE}")
        spans = codebook.to(device, torch.float32).unflatten(0, (books, heads // books)).transpose(1, 2).flatten(2)
        self.spans = spans.contiguous()
        self.half_norm = 0.5 * self.spans.square().sum(-1)
        self.shape = (heads, dim)

    def __call__(self, x: Tensor) -> Tensor:
        """Indices int64 [T, books] for ``x`` fp16, bf16 or fp32 [T, H_kv, D] with contiguous tokens.

        Raises:
            ValueError: another shape, or heads of a token that do not lie side by side.
        """
        if x.shape[1:] != self.shape or not all(row.is_contiguous() for row in x[:1]):
            raise ValueError(f"x {tuple(x.shape)}, strides {x.stride()}: not [T, {self.shape}] with contiguous tokens")
        return kmeans_assign(x, self.spans, self.half_norm)


@torch.library.custom_op("sawbench::kmeans_assign", mutates_args=())
def kmeans_assign(x: Tensor, spans: Tensor, half_norm: Tensor) -> Tensor:
    """The launch. ``spans`` float32 [books, C, E], ``half_norm`` [books, C] = |c|^2 / 2."""
    books, centroids, width = spans.shape
    tokens = len(x)
    # Few tokens: small tiles and parts of the dimensions, for what takes time there is a program's chain of loads and
    # products, not their number. Many: large tiles, whose operands are used often.
    few = tokens <= FEW
    rows, block, part, depth = (16, 32, gcd(width, 128), gcd(width, 64)) if few else (64, 64, width, MULTIPLE)
    wide = triton.next_power_of_2(centroids)
    block = min(block, max(16, wide))
    products = torch.empty(width // part, tokens, books, centroids, dtype=torch.float32, device=x.device)
    index = torch.empty(tokens, books, dtype=torch.int64, device=x.device)
    if tokens:
        picked = max(1, (1 if few else 8) * 256 // wide)
        with torch.cuda.device_of(x):
            products_kernel[(-(-tokens // rows), -(-centroids // block), books * (width // part))](
                x, spans, products, tokens, x.stride(0),
                E=width, C=centroids, BOOKS=books, PART=part, ROWS=rows, BLOCK=block, DEPTH=depth, num_warps=4,
            )  # fmt: skip
            nearest_kernel[(-(-tokens // picked), books)](
                products, half_norm, index, tokens,
                C=centroids, BOOKS=books, PARTS=width // part, ROWS=picked, WIDE=wide, num_warps=4,
            )  # fmt: skip
    return index


@kmeans_assign.register_fake
def _(x: Tensor, spans: Tensor, half_norm: Tensor) -> Tensor:
    return torch.empty(x.shape[0], spans.shape[0], dtype=torch.int64, device=x.device)

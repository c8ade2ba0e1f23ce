"""Checked entry to kmeans_assign; :mod:`.naive` is the specification."""

import torch
import triton
from torch import Tensor

from sawbench_kernels.kmeans_assign.kernel import assign_kernel

DEPTH = 32
"""Dimensions that one step of the product takes; head sizes are multiples of it."""


class KMeansAssign:
    """Nearest centroid of every token in each of ``books`` codebooks, for one side of one layer.

    Args:
        codebook: float [H_kv, C, D]; a codebook's centroids span the vectors of ``H_kv / books`` neighbouring heads.

    Raises:
        ValueError: ``books`` does not divide the heads, or the head size is no multiple of 32.
    """

    def __init__(self, codebook: Tensor, books: int, device: torch.device) -> None:
        heads, self.centroids, dim = codebook.shape
        if heads % books or dim % DEPTH:
            raise ValueError(f"books={books} must divide {heads} heads, and head_dim={dim} be a multiple of {DEPTH}")
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
    rows = 16 if tokens <= 64 else 64
    block = min(64, max(16, triton.next_power_of_2(centroids)))
    blocks = -(-centroids // block)
    best = torch.empty(blocks, tokens, books, dtype=torch.float32, device=x.device)
    index = torch.empty(blocks, tokens, books, dtype=torch.int64, device=x.device)
    if tokens:
        with torch.cuda.device_of(x):
            assign_kernel[(-(-tokens // rows), blocks, books)](
                x, spans, half_norm, best, index, tokens, x.stride(0),
                E=width, C=centroids, BOOKS=books, ROWS=rows, BLOCK=block, DEPTH=DEPTH, num_warps=4,
            )  # fmt: skip
    return index[0] if blocks == 1 else index.gather(0, best.argmax(0, keepdim=True)).squeeze(0)


@kmeans_assign.register_fake
def _(x: Tensor, spans: Tensor, half_norm: Tensor) -> Tensor:
    return torch.empty(x.shape[0], spans.shape[0], dtype=torch.int64, device=x.device)

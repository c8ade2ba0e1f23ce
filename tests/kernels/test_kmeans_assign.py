"""kmeans_assign finds the nearest centroid of every token, in every codebook."""

import pytest
import torch
from torch import Tensor

from helpers.pages import DEVICE, draw
from sawbench_kernels.kmeans_assign.naive import assign
from sawbench_kernels.kmeans_assign.op import KMeansAssign


def specified(x: Tensor, codebook: Tensor, books: int) -> Tensor:
    heads = len(codebook) // books
    parts = zip(x.split(heads, 1), codebook.split(heads), strict=True)
    return torch.stack([assign(part.flatten(1), book.transpose(0, 1).flatten(1)) for part, book in parts], -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "centroids", "books"),
    [(5, 2, 32, 1, 1), (20, 4, 32, 16, 2), (70, 2, 64, 100, 1), (3, 2, 96, 300, 1), (17, 4, 128, 40, 2)],
)
def test_indices_are_those_of_the_specification(
    tokens: int, heads: int, dim: int, centroids: int, books: int, dtype: torch.dtype
) -> None:
    codebook = draw(heads, centroids, dim, seed=1, dtype=torch.float32)
    x = draw(tokens, heads, dim, dtype=dtype)
    assert torch.equal(KMeansAssign(codebook, books, DEVICE)(x), specified(x, codebook, books))


def test_a_token_at_a_centroid_far_from_the_origin_gets_it() -> None:
    """The norms, not the products alone, decide: a large centroid must not attract everything."""
    codebook = torch.cat([torch.full((1, 1, 32), float(size), device=DEVICE) for size in (1, 10, 100)], 1)
    x = codebook.transpose(0, 1).to(torch.bfloat16)
    assert KMeansAssign(codebook, 1, DEVICE)(x).flatten().tolist() == [0, 1, 2]


def test_ties_take_the_lowest_index() -> None:
    """Whole numbers, so that equal scores are equal to the bit."""
    codebook = draw(1, 1, 32, dtype=torch.float32).round().expand(1, 200, 32)
    assert KMeansAssign(codebook, 1, DEVICE)(draw(4, 1, 32).round()).flatten().tolist() == [0] * 4


def test_what_it_does_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="books=2"):
        KMeansAssign(draw(3, 4, 32), 2, DEVICE)
    with pytest.raises(ValueError, match="contiguous tokens"):
        KMeansAssign(draw(2, 4, 32), 1, DEVICE)(draw(2, 5, 32).transpose(0, 1))

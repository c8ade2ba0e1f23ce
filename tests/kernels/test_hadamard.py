"""The block Hadamard alone: bit-identical to the specification, and what a Hadamard must be."""

import pytest
import torch

from helpers.pages import DEVICE, draw
from sawbench_kernels.hadamard.naive import hadamard as specified
from sawbench_kernels.hadamard.naive import hadamard_matrix
from sawbench_kernels.hadamard.op import hadamard


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dim", "order"), [(32, 16), (64, 64), (96, 32), (128, 16), (128, 128), (256, 256)])
def test_bits_are_those_of_the_specification(dim: int, order: int, dtype: torch.dtype) -> None:
    x = draw(5, 2, dim, dtype=dtype)
    assert torch.equal(hadamard(x, order), specified(x, order))


@pytest.mark.parametrize(("dim", "order"), [(96, 32), (128, 128), (256, 64)])
def test_the_specification_is_the_orthonormal_matrix(dim: int, order: int) -> None:
    x = draw(3, dim, dtype=torch.float64)
    blocks = torch.block_diag(*[hadamard_matrix(order, torch.float64, DEVICE)] * (dim // order))
    torch.testing.assert_close(specified(x, order), x @ blocks, rtol=0, atol=1e-13)
    torch.testing.assert_close(specified(specified(x, order), order), x, rtol=0, atol=1e-13)


def test_strided_input() -> None:
    x = draw(6, 4, 64)
    assert torch.equal(hadamard(x[::2, 1:3], 64), specified(x[::2, 1:3], 64))


@pytest.mark.parametrize(
    ("shape", "order", "message"),
    [((2, 2, 96), 64, r"\[1, 16, 32\]"), ((2, 2, 80), 16, "multiple of 32"), ((2, 64), 16, "T, H, D")],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], order: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hadamard(draw(*shape), order)

"""Rotations: orthonormal, block by block, and refused where a head cannot be cut."""

import pytest
import torch

from helpers.methods import bind, load_method, make_facts
from sawbench.core.errors import UserError
from sawbench.methods.hessian import Hessian, eigenbasis
from sawbench.methods.parts import LayerSample
from sawbench.methods.transforms import BlockHadamard, legal_orders
from sawbench_kernels.hadamard.naive import hadamard, hadamard_matrix


@pytest.mark.parametrize("order", [2, 16, 32, 64, 128, 256])
def test_hadamard_is_orthonormal_symmetric_and_sylvester(order: int) -> None:
    matrix = hadamard_matrix(order, torch.float64)
    assert torch.allclose(matrix @ matrix, torch.eye(order, dtype=torch.float64), atol=1e-12)
    assert torch.equal(matrix, matrix.T)
    half = order // 2
    assert torch.equal(matrix[:half, :half], -matrix[half:, half:])


def test_blocks_do_not_mix() -> None:
    x = torch.zeros(1, 64, dtype=torch.float64)
    x[0, 20] = 1
    assert hadamard(x, 16).nonzero()[:, 1].tolist() == list(range(16, 32))


def test_auto_order_is_the_largest_power_of_two() -> None:
    assert [BlockHadamard().resolve(d) for d in (64, 80, 96, 128, 192)] == [64, 16, 32, 128, 64]


def test_an_order_that_does_not_divide_names_the_legal_ones() -> None:
    with pytest.raises(UserError, match=r"head_dim is 80; legal orders: 2, 4, 8, 16"):
        load_method("bdr", order=64).check(make_facts(80))
    with pytest.raises(UserError, match="legal orders"):
        load_method("bdr", order=48).check(make_facts(96))
    with pytest.raises(UserError, match="legal orders: none"):
        load_method("bdr").check(make_facts(33))
    assert legal_orders(96) == [2, 4, 8, 16, 32]


def test_rotation_spreads_an_outlier_channel() -> None:
    """Why the paper's method works: one channel of 50 among units leaves a far smaller range after rotation."""
    x = torch.randn(200, 128, dtype=torch.float64)
    x[:, 7] = 50
    assert float(hadamard(x, 128).abs().amax(-1).mean()) < 12


def test_k_only_rotation_leaves_v_bytes_alone() -> None:
    """Known fault 9."""
    facts = make_facts()
    x, where = torch.randn(1, 6, 2, 64), torch.arange(6)[None]
    plain, rotated = (bind(load_method(name), facts)[0].value.encode(x, where) for name in ("int4", "bdr"))
    assert all(torch.equal(plain[name], rotated[name]) for name in plain)


def sample(queries: torch.Tensor) -> LayerSample:
    return LayerSample(queries, queries[:, :2], queries[:, 2:], torch.randn(32, 4 * 16))


def test_eigenbasis_is_canonical_and_ordered() -> None:
    draw = torch.randn(500, 16, dtype=torch.float64) * torch.arange(1, 17)
    basis = eigenbasis(draw.T @ draw / 500)
    moments = (draw @ basis).square().mean(0)
    assert torch.allclose(basis.T @ basis, torch.eye(16, dtype=torch.float64), atol=1e-10)
    assert moments.tolist() == sorted(moments.tolist(), reverse=True)
    assert bool((basis.gather(0, basis.abs().argmax(0, keepdim=True)) > 0).all())


def test_a_matched_rotation_would_cancel_the_hadamard() -> None:
    """Eigenvectors of q H are H times those of q, so (k H) R' = k R: why the authors' queries are of order 16."""
    queries = torch.randn(400, 4, 16) * torch.arange(1, 17)
    plain = Hessian(query_order=1).fit(sample(queries), "key", 0)["rotation"]
    matched = Hessian(query_order=16).fit(sample(queries), "key", 0)["rotation"]
    cancelled = hadamard_matrix(16) @ matched
    assert torch.allclose(cancelled.abs(), plain.abs(), atol=1e-3)


def test_value_rotation_comes_from_the_output_projection() -> None:
    weight = torch.randn(32, 4 * 16)
    queries = torch.randn(10, 4, 16)
    rotation = Hessian().fit(LayerSample(queries, queries, queries, weight), "value", 0)["rotation"]
    moment = sum(block.T @ block for block in weight.split(16, 1))
    turned = rotation.T @ moment @ rotation
    off_diagonal = turned - turned.diagonal().diag()
    assert float(off_diagonal.abs().max()) < 1e-3 * float(turned.diagonal().max())


def test_nothing_is_rounded_to_the_models_dtype_before_the_quantizer() -> None:
    """bf16 keys: codes are those of the exact rotation, as the fused kernel makes them."""
    side = bind(load_method("bdr"), make_facts())[0].key
    x, where = torch.randn(1, 6, 2, 64).to(torch.bfloat16), torch.arange(6)[None]
    coarse, fine = side.encode(x, where), side.encode(x.float(), where)
    assert all(torch.equal(coarse[name], fine[name]) for name in fine)

"""dequantize_pages returns what the specification returns: the model's own K and V, offsets added, rotations undone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.pages import DEVICE, HEADS, PAGE, Case, dense, filled
from sawbench_kernels.dequantize_pages.naive import dequantize_pages
from sawbench_kernels.dequantize_pages.op import DequantizePages
from sawbench_kernels.pages import slots_of

TABLE, LENGTH = [3, 0], 21
CASES = {
    "int4": Case(),
    "int8": Case(bits=(8, 8)),
    "raw": Case(bits=(16, 16)),
    "bdr_kv": Case(rotations=(64, 32)),
    "head 96": Case(dim=96, rotations=(32, 16), bits=(4, 8)),
    "head 256": Case(dim=256, rotations=(256, 1)),
    "kbias_bdr": Case(dim=128, rotations=(128, 1), pairs=8),
    "kmeans_bdr": Case(rotations=(64, 1), centroids=300, books=2),
    "centre": Case(centroids=1),
}
DENSE = {"hessian": Case(rotations=(dense(64), dense(64, HEADS))), "head 96": Case(dim=96, rotations=(dense(96), 1))}


def both(case: Case, side: Any, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Tensor, Tensor]:
    planes = case.spec.layout.view(filled(case, [TABLE], (LENGTH,)))
    slots = slots_of(torch.tensor(TABLE, device=DEVICE), LENGTH, PAGE)
    positions = torch.arange(LENGTH, device=DEVICE)
    mine = DequantizePages(case.spec, side, DEVICE, 1000, options.pop("low_dims", None))(
        planes, slots, positions, dtype, **options
    )
    return mine, dequantize_pages(planes, slots, case.spec, side, positions)


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_are_those_of_the_specification(case: Case, side: str) -> None:
    mine, specified = both(case, side)
    assert torch.equal(mine, specified)


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
def test_dense_rotations_agree_to_float32(case: Case, side: str) -> None:
    mine, specified = both(case, side)
    torch.testing.assert_close(mine, specified, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_output_is_rounded_once(dtype: torch.dtype) -> None:
    mine, specified = both(CASES["bdr_kv"], "key", dtype)
    assert torch.equal(mine, specified.to(dtype))


def test_factor_and_head_range() -> None:
    mine, specified = both(CASES["int4"], "key", torch.float16, factor=1 / 16, heads=(1, 2))
    assert torch.equal(mine, (specified[:, 1:] / 16).half())


def test_low_columns_hold_what_rounding_left() -> None:
    """A key near 200 in fp16 is off by up to 0.06; with its low column by less than 1e-4."""
    case = CASES["kbias_bdr"]
    touched = case.spec.key_bias.bias.cpu() != 0  # type: ignore[union-attr]
    low_dims = torch.full((HEADS, 24), -1, dtype=torch.int32)
    for head in range(HEADS):
        low_dims[head, :16] = touched[head].nonzero().squeeze(1)
    mine, specified = both(case, "key", torch.float16, low_dims=low_dims)
    high, low = mine[..., : case.dim].float(), mine[..., case.dim :].float()
    for head in range(HEADS):
        dims = low_dims[head, :16].long()
        wanted = specified[:, head, dims]
        assert (wanted - high[:, head, dims]).abs().max() > 1e-2
        assert (wanted - high[:, head, dims] - low[:, head, :16]).abs().max() < 1e-4
        assert (low[:, head, 16:] == 0).all()


def test_keys_with_a_bias_need_positions() -> None:
    case = CASES["kbias_bdr"]
    with pytest.raises(ValueError, match="positions"):
        DequantizePages(case.spec, "key", DEVICE, 1000)(
            case.spec.layout.view(case.pool()), torch.zeros(1, dtype=torch.int64, device=DEVICE)
        )

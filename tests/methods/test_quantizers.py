"""Integer quantizers against their own law: half a step, plus half an ulp of a stored fp16 minimum."""

from itertools import pairwise

import pytest
import torch

from helpers.methods import load_method, make_facts
from sawbench.core.errors import UserError
from sawbench.methods.quantizers import PAIR_BYTES, AffineInt, Raw

STORAGES = list(PAIR_BYTES)


def rows(kind: str) -> torch.Tensor:
    x = torch.randn(1, 40, 3, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    match kind:
        case "outlier":
            x[..., 0] = 180.0
        case "one-signed":
            x = x.abs() + 300.0
        case "negative":
            x = -x.abs() - 300.0
        case "huge":
            x = x * 1e4
        case "constant":
            x = torch.full_like(x, 3.0)
        case "zero":
            x = torch.zeros_like(x)
    return x


def round_trip(x: torch.Tensor, quantizer: AffineInt) -> torch.Tensor:
    return quantizer.decode(quantizer.encode(x), x.shape[-1], torch.float64)


@pytest.mark.parametrize("kind", ["normal", "outlier", "one-signed", "negative", "huge", "constant", "zero"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("bits", range(2, 9))
def test_error_is_within_half_a_step(kind: str, storage: str, bits: int) -> None:
    """Every width meets its own bound (known fault 7), one-signed vectors too: the zero-point is never clipped."""
    x = rows(kind)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    stored_min = low.abs() * 2**-11 if storage == "fp16" else step * 0.5 + low.abs() * 2**-22
    bound = step * (0.5 + 2**-9 * 2**bits) + stored_min + 1e-6
    assert bool(((round_trip(x, AffineInt(bits, "head", storage)) - x).abs() <= bound).all())


def test_more_bits_err_less() -> None:
    x = rows("normal")
    errors = [float((round_trip(x, AffineInt(bits)) - x).norm()) for bits in range(2, 9)]
    assert errors == sorted(errors, reverse=True)
    assert all(0.4 < b / a < 0.6 for a, b in pairwise(errors))


def test_constant_rows_are_code_zero_with_scale_one() -> None:
    planes = AffineInt(4).encode(rows("constant"))
    assert not planes["codes"].any()
    assert torch.equal(planes["pair"][..., 0], torch.ones(1, 40, 3, 1, dtype=torch.float16))


def test_a_minimum_beyond_fp16_is_refused_and_fp32_takes_it() -> None:
    x = rows("normal") * 1e3 + 1e5
    with pytest.raises(OverflowError, match="fp32"):
        AffineInt(4, "head", "fp16").encode(x)
    assert round_trip(x, AffineInt(4, "head", "fp32_unrounded")).isfinite().all()


@pytest.mark.parametrize(
    ("quantizer", "bits"),
    [
        (AffineInt(4, "head", "fp16"), 4.25),
        (AffineInt(4, "head", "fp32"), 4.5),
        (AffineInt(8, "head", "fp16"), 8.25),
        (AffineInt(4, 32, "fp16"), 5.0),
        (Raw("bfloat16"), 16.0),
    ],
)
def test_stored_bits_at_head_dim_128(quantizer: AffineInt | Raw, bits: float) -> None:
    x = torch.randn(2, 5, 3, 128)
    stored = sum(plane.untyped_storage().nbytes() for plane in quantizer.encode(x).values())
    assert stored * 8 / x.numel() == bits
    assert quantizer.bytes_per_vector(128) * 8 / 128 == bits


def test_groups_have_their_own_range() -> None:
    x = rows("outlier")
    grouped = (round_trip(x, AffineInt(4, 32)) - x)[..., 32:].abs().max()
    whole = (round_trip(x, AffineInt(4)) - x)[..., 32:].abs().max()
    assert grouped < whole / 10


@pytest.mark.parametrize("group", [0, -32, 48, "third"])
def test_a_group_that_cuts_no_head_is_refused(group: object) -> None:
    with pytest.raises(UserError, match="is not one of: head, 2, 4, 8"):
        load_method("int4", group=group).check(make_facts(64))


def test_the_papers_rounded_zero_is_not_its_codes_unrounded_zero() -> None:
    x = rows("normal")
    paper, code = (AffineInt(4, "head", s).encode(x)["pair"][..., 1] for s in ("fp32", "fp32_unrounded"))
    assert torch.equal(paper, paper.round())
    assert not torch.equal(paper, code)

"""paged_decode against its specification in float64: every width, head, group and kind of cache; hostile data."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.decode import Step
from helpers.pages import DEVICE, dense
from sawbench_kernels.key_bias import Rotary, split_bias
from sawbench_kernels.paged_decode import KeyBias, PagedDecode
from sawbench_kernels.paged_decode.op import decode, project

TOLERANCE = 5e-3
"""Most of the error is the output's own rounding to bf16."""


@pytest.mark.parametrize("key_bits", [4, 8, 16])
@pytest.mark.parametrize("value_bits", [4, 8, 16])
def test_every_mix_of_widths(key_bits: int, value_bits: int) -> None:
    assert Step(bits=(key_bits, value_bits)).error() < TOLERANCE


@pytest.mark.parametrize("group", [1, 2, 3, 6, 7, 8, 9, 16])
def test_every_number_of_query_heads_per_kv_head(group: int) -> None:
    assert Step(group=group, lengths=(21,)).error() < TOLERANCE


@pytest.mark.parametrize(("dim", "order"), [(64, 16), (64, 64), (96, 32), (128, 32), (128, 128), (256, 256)])
@pytest.mark.parametrize("bits", [(4, 4), (8, 4), (16, 16)])
def test_rotations_on_both_sides(dim: int, order: int, bits: tuple[int, int]) -> None:
    options = {"key_rotation": order, "value_rotation": order}
    assert Step(dim=dim, bits=bits, lengths=(19, 3), options=options).error() < TOLERANCE


@pytest.mark.parametrize("heads", [None, 2])
def test_dense_rotations_shared_and_by_head(heads: int | None) -> None:
    options = {"key_rotation": dense(64, heads), "value_rotation": dense(64, heads)}
    assert Step(lengths=(21, 5), options=options).error() < TOLERANCE


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_lengths_around_a_page(page: int, around: int) -> None:
    assert Step(page=page, lengths=(page + around, 1)).error() < TOLERANCE


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_splits_change_nothing_and_an_empty_sequence_gives_zeros(splits: int) -> None:
    step = Step(lengths=(70, 0, 300, 0, 5), page=64)
    assert step.error(splits) < TOLERANCE
    assert step.run(splits)[[1, 3]].eq(0).all()


@pytest.mark.slow
def test_more_sequences_than_the_schedule_sees_at_once() -> None:
    lengths = [1 + b % 3 if b % 7 else 0 for b in range(130)]
    step = Step(heads=1, group=2, lengths=lengths, options={"key_rotation": dense(64)})
    assert step.error(splits=3) < TOLERANCE


def outlier(channel: int, size: float):  # type: ignore[no-untyped-def]
    def shape(x: Tensor) -> Tensor:
        x[..., channel] = size
        return x

    return shape


HOSTILE = {
    "constant": lambda x: torch.full_like(x, 3.0),
    "zero": torch.zeros_like,
    "one-signed": lambda x: x.abs() + 5,
    "negative": lambda x: -x.abs() - 5,
    "huge": lambda x: x.clamp(-3, 3) * 2e4,
    "tiny": lambda x: x * 1e-4,
    "channel 0": outlier(0, 200.0),
    "a middle channel": outlier(13, -10.0),
    "the last channel": outlier(63, 100.0),
    "some rows huge": lambda x: torch.where(torch.arange(len(x), device=x.device)[:, None, None] % 5 == 0, 1e3 * x, x),
}


@pytest.mark.parametrize("shape", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("side", ["key", "value"])
def test_hostile_rows(side: str, shape: object) -> None:
    step = Step(lengths=(37, 2), options={"key_rotation": 64}, **{f"shape_{side}": shape})  # type: ignore[arg-type]
    step.q *= 1e-3 if side == "key" and shape is HOSTILE["huge"] else 1
    if side == "value" and shape is HOSTILE["zero"]:
        assert step.run().eq(0).all()
    else:
        assert step.error() < TOLERANCE


def half_pairs(dim: int) -> Tensor:
    return torch.stack((torch.arange(dim // 2), torch.arange(dim // 2) + dim // 2), -1)


ROTARIES = {
    "half order": Rotary(half_pairs(64), 1e4 ** (-torch.arange(32).double() / 32), 1.0),
    "interleaved": Rotary(torch.arange(64).view(32, 2), 1e4 ** (-torch.arange(32).double() / 32), 1.0),
    "partial": Rotary(half_pairs(32), 1e4 ** (-torch.arange(16).double() / 16), 1.0),
    "scaled": Rotary(half_pairs(64), 1e6 ** (-torch.arange(32).double() / 32), 1.3),
}


@pytest.mark.parametrize("rotary", ROTARIES.values(), ids=ROTARIES)
@pytest.mark.parametrize("pairs", [8, 3, None])
def test_key_bias_of_logits_beyond_a_thousand(rotary: Rotary, pairs: int | None) -> None:
    step = Step(lengths=(90, 7), page=32)
    bias = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE) * 200
    split = KeyBias(split_bias(bias, rotary, pairs), rotary)
    step = Step(lengths=(90, 7), page=32, options={"key_rotation": 64, "key_bias": split})
    assert step.error() < TOLERANCE


CODEBOOKS = [(16, 0, 1), (300, 16, 1), (0, 200, 2), (256, 256, 2), (5, 5, 1), (0, 2048, 2)]


@pytest.mark.parametrize(("key", "value", "books"), CODEBOOKS)
def test_codebooks(key: int, value: int, books: int) -> None:
    draws = torch.Generator().manual_seed(2)
    layout = {"key_centroids": key, "value_centroids": value, "books": books}
    options = {
        f"{side}_codebook": torch.randn(2, count, 64, generator=draws).to(DEVICE)
        for side, count in (("key", key), ("value", value))
        if count
    }
    options |= {"key_rotation": 64, "value_rotation": 32}
    assert Step(lengths=(40, 1), options=options, layout_options=layout).error() < TOLERANCE


def test_a_static_mean_of_values() -> None:
    mean = torch.randn(2, 64, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    step = Step(lengths=(21, 0), options={"value_mean": mean, "value_rotation": 64})
    assert step.error() < TOLERANCE
    assert step.run()[1].eq(0).all()


def test_float16_queries() -> None:
    assert Step(bits=(4, 16), dtype=torch.float16, lengths=(21,), options={"key_rotation": 64}).error() < TOLERANCE


def test_queries_of_any_stride() -> None:
    step = Step(lengths=(21, 5))
    wide = step.normal(2, 3, 8, 64).bfloat16()
    step.q = wide[:, 1]
    assert not step.q.is_contiguous()
    assert step.error() < TOLERANCE


def test_fake_tensors_have_the_shapes_of_real_ones() -> None:
    step = Step(lengths=(21,), options={"value_rotation": dense(64)})
    with FakeTensorMode(allow_non_fake_inputs=True):
        out = step.run()
    assert (out.shape, out.dtype) == (step.q.shape, step.q.dtype)
    for op in (decode, project):
        assert str(op._opoverload._schema).startswith("sawbench::")


def test_one_graph_without_breaks() -> None:
    step = Step(lengths=(21,))
    layer = PagedDecode(step.spec, DEVICE, 64, 2)
    compiled = torch.compile(
        lambda q: layer(q + 0, step.planes, step.table, step.counts), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(step.q), step.run())


def refuse(change: str) -> None:
    step = Step(lengths=(21,))
    match change:
        case "q":
            step.q = step.q.float()
        case "block_table":
            step.table = step.table.long()
        case "lengths":
            step.counts = step.counts.long()
        case "key.codes":
            step.planes["key.codes"] = step.planes["key.codes"][:, :, :, ::2]
        case "KV heads":
            step.q = step.q[:, :5]
        case "order 128":
            step.spec = Step(options={"key_rotation": 128}).spec
        case "600 centroids":
            book = torch.zeros(2, 600, 64, device=DEVICE)
            step.spec = Step(options={"value_codebook": book}, layout_options={"value_centroids": 601}).spec
    step.run()


@pytest.mark.parametrize("what", ["q", "block_table", "lengths", "key.codes", "KV heads", "order 128", "600 centroids"])
def test_what_the_kernel_cannot_read_is_refused_by_name(what: str) -> None:
    with pytest.raises(ValueError, match=what):
        refuse(what)

"""The quantized cache under transformers: each operation equals the same one on an unquantized copy, or it raises."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from helpers.methods import bind, make_facts, small_method
from sawbench.cache.hf import QuantizedCache, report_of_rows

FACTS = make_facts(head_dim=16)
SHAPE = FACTS.shape


def filled(
    name: str,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    chunks: tuple[int, ...],
    pads: torch.Tensor | None = None,
) -> QuantizedCache:
    """A cache of method ``name`` that k, v [B, H, T, D] went into, in ``chunks``; ``pads`` tokens of each row at the
    left are padding."""
    cache = QuantizedCache(bind(small_method(name), FACTS), SHAPE)
    start = 0
    for size in chunks:
        cache.note_positions(positions[:, start : start + size])
        if pads is not None:
            cache.note_mask((torch.arange(start + size) >= pads[:, None]).long())
        for layer in range(SHAPE.layers):
            cache.update(k[:, :, start : start + size], v[:, :, start : start + size], layer)
        start += size
    return cache


def decoded(cache: QuantizedCache) -> list[torch.Tensor]:
    where = cache.rows.planes["positions"]
    return [
        side.read(store, where, torch.float64)
        for layer in cache.layers
        for side, store in zip((layer.codec.key, layer.codec.value), layer.stores(), strict=True)
    ]


@pytest.fixture
def data() -> SimpleNamespace:
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(3, 2, 7, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    positions = torch.stack([torch.arange(7) - pad for pad in (0, 2, 4)]).clamp_min(0)
    return SimpleNamespace(k=k, v=v, positions=positions)


METHODS = ["bf16", "int4", "bdr_kv", "kmeans", "centre_bdr", "kbias_bdr", "hessian", "mixed"]


@pytest.mark.parametrize("name", METHODS)
def test_row_operations_equal_those_on_the_input(name: str, data: SimpleNamespace) -> None:
    """Known faults 6 and 13, positions of left-padded rows included: bytes move, they are never made again."""
    cache = filled(name, data.k, data.v, data.positions, (7,))
    beams = torch.tensor([2, 2, 0])
    cache.reorder_cache(beams)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3, 5]))
    cache.crop(-3)
    rows = beams.repeat_interleave(2)[torch.tensor([0, 3, 5])]
    other = filled(name, data.k[rows][:, :, :4], data.v[rows][:, :, :4], data.positions[rows][:, :4], (4,))
    assert cache.get_seq_length() == 4
    assert all(torch.equal(a, b) for a, b in zip(decoded(cache), decoded(other), strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_streamed_equals_one_shot_and_old_bytes_stay(name: str, data: SimpleNamespace) -> None:
    whole = filled(name, data.k, data.v, data.positions, (7,))
    streamed = filled(name, data.k, data.v, data.positions, (1, 4, 1, 1))
    assert all(torch.equal(a, b) for a, b in zip(decoded(whole), decoded(streamed), strict=True))


def test_windows_follow_padded_rows_through_every_operation(windowed_name: str) -> None:
    """Known faults 13 to 15 where tokens drain: the attention mask says which are padding, beams and repeats move it,
    the next chunk goes on from there, and each row ends as the same row alone does."""
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.randn(3, 2, 30, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    pads = torch.tensor([0, 3, 11])
    where = (torch.arange(30) - pads[:, None]).clamp_min(0)
    cache = filled(windowed_name, k[:, :, :26], v[:, :, :26], where[:, :26], (9, 16, 1), pads)
    cache.reorder_cache(torch.tensor([2, 1, 1]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    rows = torch.tensor([2, 1])
    cache.note_positions(where[rows, 26:])
    cache.note_mask((torch.arange(30) >= pads[rows, None]).long())
    for layer in range(SHAPE.layers):
        cache.update(k[rows, :, 26:], v[rows, :, 26:], layer)
    assert cache.padding() == [11, 3]
    for at, (row, pad) in enumerate(((2, 11), (1, 3))):
        one = slice(row, row + 1)
        alone = filled(windowed_name, k[one, :, pad:], v[one, :, pad:], where[one, pad:], (30 - pad,))
        for a, b in zip(decoded(cache), decoded(alone), strict=True):
            assert torch.equal(a[at, pad:], b[0])


def test_a_crop_that_cannot_be_exact_leaves_the_cache_as_it_was() -> None:
    """K could go back, V could not: neither does."""
    k, v = (torch.randn(1, 2, 15, 16, dtype=torch.float64) for _ in range(2))
    cache = filled("kivi4", k, v, torch.arange(15)[None], (15,))
    before = decoded(cache)
    with pytest.raises(ValueError, match="cannot be forgotten"):
        cache.crop(-2)
    assert cache.get_seq_length() == 15
    assert all(torch.equal(a, b) for a, b in zip(before, decoded(cache), strict=True))


def test_padding_anywhere_but_at_the_left_is_refused_by_windows() -> None:
    k = torch.randn(1, 2, 4, 16, dtype=torch.float64)
    cache = QuantizedCache(bind(small_method("kivi4"), FACTS), SHAPE)
    cache.note_positions(torch.arange(4)[None])
    cache.note_mask(torch.tensor([[1, 1, 0, 0]]))
    with pytest.raises(ValueError, match="padded on the left"):
        cache.update(k, k, 0)


def test_reset_forgets_length_and_positions(data: SimpleNamespace) -> None:
    cache = filled("int4", data.k, data.v, data.positions, (7,))
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.report().bytes == 0


def test_what_is_not_served_raises(data: SimpleNamespace) -> None:
    cache = filled("int4", data.k, data.v, data.positions, (7,))
    with pytest.raises(ValueError, match="negative"):
        cache.crop(3)
    with pytest.raises(ValueError, match="offload"):
        cache.offload(0)
    with pytest.raises(RuntimeError, match="positions hook"):
        cache.update(data.k, data.v, 0)


@pytest.mark.parametrize(
    ("name", "bits"), [("bf16", 16), ("int4", 6), ("int8", 10), ("k8v4", 8), ("kmeans", 6.25), ("kbias_bdr", 6)]
)
def test_reported_bits_are_allocated_bytes(name: str, bits: float, data: SimpleNamespace) -> None:
    """Known fault 19, at head_dim 16: a pair adds 2 bits a value, an index of one byte 0.25 a side and 2 heads."""
    report = filled(name, data.k, data.v, data.positions, (7,)).report()
    allocated = sum(report.planes.values())
    assert report.values == 3 * 7 * SHAPE.values_per_token
    assert report.bits_per_value == bits == 8 * allocated / report.values
    assert (report.shared_bytes > 0) == (name == "kmeans")


@pytest.mark.parametrize("name", ["kivi2", "kivi4", "kitty", "int4"])
def test_rows_of_some_length_store_what_a_cache_of_one_row_does(name: str) -> None:
    """Whatever chunks they came in."""
    generator = torch.Generator().manual_seed(1)
    layers, lengths, planes = bind(small_method(name), FACTS), (70, 23, 70, 1), Counter[str]()
    for length in lengths:
        k, v = (torch.randn(1, 2, length, 16, generator=generator, dtype=torch.float64) for _ in range(2))
        cache = filled(name, k, v, torch.arange(length)[None], (length // 2 + 1, *[1] * (length - length // 2 - 1)))
        planes.update(cache.report().planes)
    report = report_of_rows(layers, SHAPE, lengths, torch.float64)
    assert report.planes == planes
    assert (report.tokens, report.values) == (164, 164 * SHAPE.values_per_token)

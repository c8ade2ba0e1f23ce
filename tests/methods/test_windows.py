"""Windows and groups: they drain, are exact where they promise to be, and padding enters none of them."""

from dataclasses import replace

import pytest
import torch

from helpers.methods import bind, load_method, make_facts, small_method
from sawbench.core.errors import UserError
from sawbench.methods.kitty import BoostedChannels
from sawbench.methods.kivi import PerChannel
from sawbench.methods.method import BoundSide
from sawbench.methods.quantizers import AffineInt
from sawbench.methods.windows import Windowed, WindowStore

FACTS = make_facts()
TOKENS = 40
PADS = (0, 5, 21)


def draw(rows: int = 3, tokens: int = TOKENS, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, tokens, 2, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sides(name: str, **options: object) -> list[BoundSide]:
    layer = bind(small_method(name, **options), FACTS)[0]
    return [layer.key, layer.value]


def written(side: BoundSide, x: torch.Tensor, *chunks: int, pads: tuple[int, ...] = ()) -> WindowStore:
    store, start = side.new_store(), 0
    for size in chunks or (x.shape[1],):
        where = torch.arange(start, start + size).expand(len(x), size)
        store.append(x[:, start : start + size], where, lambda: pads)
        start += size
    assert isinstance(store, WindowStore)
    return store


def values(store: WindowStore) -> torch.Tensor:
    return store.values(torch.float64)


@pytest.mark.parametrize("chunks", [(40,), (3, 1, 1, 20, 1, 14), (1,) * 40])
def test_rows_of_a_padded_batch_equal_the_rows_alone(windowed_name: str, chunks: tuple[int, ...]) -> None:
    """Known faults 3 and 14: groups are made of a row's own tokens, also where whole chunks are padding."""
    x = draw()
    for side in sides(windowed_name):
        padded = values(written(side, x, *chunks, pads=PADS))
        assert padded.isfinite().all()
        for row, pad in enumerate(PADS):
            assert torch.equal(padded[row, pad:], values(written(side, x[row : row + 1, pad:]))[0])


def test_padding_of_any_size_changes_nothing(windowed_name: str) -> None:
    x = draw()
    loud = x.clone()
    for row, pad in enumerate(PADS):
        loud[row, :pad] = 1e4
    for side in sides(windowed_name):
        quiet, disturbed = (values(written(side, one, 11, 29, pads=PADS)) for one in (x, loud))
        for row, pad in enumerate(PADS):
            assert torch.equal(quiet[row, pad:], disturbed[row, pad:])


def test_windows_and_sinks_are_exact_and_the_rest_drains(windowed_name: str) -> None:
    """Known fault 15: in the compute dtype sinks and the promised newest tokens are the values themselves, and never
    more than one drain of others stays beside them."""
    x = draw()
    for side in sides(windowed_name, dtype="compute"):
        window = side.quantizer
        assert isinstance(window, Windowed)
        for length in range(1, TOKENS + 1):
            store = written(side, x[:, :length], 1, length - 1) if length > 1 else written(side, x[:, :1])
            exact = (values(store) == x[:, :length]).all(-1).all(-1).all(0)
            assert exact[: window.sink].all()
            assert exact[max(0, length - window.keep) :].all()
            kept = store.held.planes["window"].shape[1]
            assert int(exact.sum()) == kept
            assert kept <= window.sink + window.keep + window.drain - 1


def test_what_was_quantized_stays_as_it_is(windowed_name: str) -> None:
    """Known fault 6: tokens that drained keep their values while others come."""
    x = draw()
    for side in sides(windowed_name):
        before, after = values(written(side, x[:, :30])), values(written(side, x, 30, 10))
        window = side.quantizer
        settled = window.sink + window.drained(30)
        assert settled > window.sink
        assert torch.equal(before[:, :settled], after[:, :settled])


def test_rows_move_with_all_that_they_hold(windowed_name: str) -> None:
    """Known fault 13: select and repeat, padded rows included, and the stream goes on."""
    x, more = draw(), draw(4, 12, seed=1)
    rows = torch.tensor([2, 0])
    order = rows.repeat_interleave(2)
    pads = tuple(PADS[row] for row in order.tolist())
    for side in sides(windowed_name):
        store = written(side, x, 17, 23, pads=PADS)
        store.select(rows)
        store.repeat(2)
        store.append(more, torch.arange(40, 52).expand(4, 12), lambda: pads)
        other = written(side, torch.cat((x[order], more), 1), pads=pads)
        for row, pad in enumerate(pads):
            assert torch.equal(values(store)[row, pad:], values(other)[row, pad:])


def refusal(store: WindowStore, dropped: int) -> str:
    """Why the last ``dropped`` tokens cannot go; empty where they went."""
    try:
        store.drop_last(dropped)
    except ValueError as error:
        return str(error)
    return ""


def test_crop_is_exact_or_raises_and_leaves_everything(windowed_name: str) -> None:
    """Known fault 13: what was quantized together cannot be forgotten in part."""
    x = draw()
    for side in sides(windowed_name):
        outcomes = set()
        for dropped in range(TOKENS + 1):
            store = written(side, x, pads=PADS)
            before = values(store)
            refused = refusal(store, dropped)
            outcomes.add(bool(refused))
            if refused:
                assert "cannot be forgotten" in refused
                assert store.tokens == TOKENS
                assert torch.equal(values(store), before)
                continue
            fresh = written(side, x[:, : TOKENS - dropped], pads=PADS)
            assert store.tokens == TOKENS - dropped
            for row, pad in enumerate(PADS):
                assert torch.equal(values(store)[row, pad:], values(fresh)[row, pad:])
        assert outcomes == {True, False}


def test_bytes_count_windows_pairs_and_indices(windowed_name: str) -> None:
    """Known fault 19: groups as advertised, and two bytes a value of every token in a window."""
    x = draw(1)
    for side in sides(windowed_name):
        store, window = written(side, x), side.quantizer
        gone = window.drained(TOKENS)
        sizes = store.bytes()
        assert sizes.pop("window") == (TOKENS - gone) * 2 * 64 * 2
        assert sum(sizes.values()) == gone * 2 * window.bytes_per_vector(64)


def test_a_range_belongs_to_a_channel() -> None:
    """Outlier channels: per channel they cost nothing, per token everything."""
    x = draw()
    x[..., 7] = 1000 + x[..., 7]
    others = [channel for channel in range(64) if channel != 7]
    errors = []
    for codec in (PerChannel(2, 8), AffineInt(2)):
        decoded = codec.decode(codec.encode(x), 64, torch.float64)
        errors.append(float((decoded - x)[..., others].abs().max()))
    assert errors[0] < 1.2  # half a step of three over a range of about six
    assert errors[1] > 2


@pytest.mark.parametrize(("bits", "group", "storage"), [(2, 8, "fp16"), (4, 8, "fp16"), (3, 5, "fp32"), (8, 4, "fp16")])
def test_error_per_channel_is_half_a_step(bits: int, group: int, storage: str) -> None:
    x = draw()
    codec = PerChannel(bits, group, storage)
    ranges = x.unflatten(1, (-1, group))
    step = (ranges.amax(2) - ranges.amin(2)) / (2**bits - 1)
    error = (codec.decode(codec.encode(x), 64, torch.float64) - x).abs().unflatten(1, (-1, group)).amax(2)
    extra = 2e-3 * x.abs().max() if storage == "fp16" else step * 0.5  # a stored minimum, or a zero-point, is rounded
    assert (error <= 0.5 * step * 1.002 + extra).all()


def test_the_largest_channels_of_a_page_get_twice_the_bits() -> None:
    x = draw()
    x[..., 5] *= 9
    x[:, 8:16, :, 11] *= 9
    codec = BoostedChannels(share=2 / 64, page=8)
    planes = codec.encode(x)
    assert (planes["index"] == 5).any(-1).all()
    assert (planes["index"][:, 1] == 11).any(-1).all()
    boosted, plain = (c.decode(c.encode(x), 64, torch.float64) - x for c in (codec, replace(codec, share=0)))
    assert boosted[..., 5].norm() < 0.4 * plain[..., 5].norm()
    usual = (planes["index"] != 6).all(-1).repeat_interleave(8, 1)
    assert usual.any()
    assert torch.equal(boosted[..., 6][usual], plain[..., 6][usual])


def test_kitty_pro_is_an_option_and_takes_more_bytes() -> None:
    usual, pro = (load_method("kitty", share=share).key.quantizer.bytes_per_vector(128) for share in (0.125, 0.25))
    assert usual * 8 / 128 == 2 + 2 * 0.125 + 32 / 128 + 0.125 * 8 / 128
    assert pro > usual


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("kivi4", {"residual": 100}, "whole groups of 32"),
        ("kivi4", {"group": 1}, "at least 2 tokens"),
        ("kivi2", {"bits": 9}, "method.options.bits=9"),
        ("kivi2", {"dtype": "int8"}, "method.options.dtype=int8"),
        ("kitty", {"share": 1.5}, "method.options.share=1.5"),
        ("kitty", {"sink": -1}, "no fewer than 0"),
        ("mixed", {"average_bits": 9}, "method.options.average_bits=9"),
        ("mixed", {"high": 6}, "method.options.high=6 is not one of: 8, 16"),
    ],
)
def test_options_that_cannot_be_are_refused(name: str, options: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        load_method(name, **options).check(FACTS)

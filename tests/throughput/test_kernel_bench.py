"""The kernel benchmark: a wrong kernel has no time, a ratio is to the best BF16, what does not fit is a row."""

import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from sawbench.throughput import decode_cases, decode_peers, kernel_bench, kernel_cases
from sawbench.throughput.decode_peers import _fastest, _values, peer_cases
from sawbench.throughput.kernel_bench import FAMILIES, SHAPES, measure_shape
from sawbench.throughput.kernel_cases import Case, KernelShape, Prepared, relative_error
from sawbench_kernels.backend import interpreted

CPU = torch.device("cpu")
SHAPE = KernelShape(2, 100, query_heads=4, kv_heads=2, head_dim=64, page_size=16)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes as many microseconds as it returns; the card has room for 10 GB."""
    monkeypatch.setattr(kernel_bench, "timer", lambda steps: lambda: float(steps[0]()))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (kernel_bench.RESERVE + 10**10, 10**11))


def case(kernel: str, time: float, error: float = 0.0, size: int = 1000, **more: object) -> Case:
    def prepare(device: torch.device) -> Prepared:
        return Prepared((lambda: time,), lambda: error)

    return Case("family", kernel, SHAPE, size, prepare, **more)  # type: ignore[arg-type]


def rows(*cases: Case) -> dict[str, kernel_bench.Row]:
    return {row.kernel: row for row in measure_shape(cases, CPU, bandwidth=1e9)}


@pytest.mark.usefixtures("clock")
def test_floor_fraction_and_ratio() -> None:
    got = rows(case("mine", 2.0), case("slow", 8.0, baseline=True), case("best", 5.0, baseline=True))
    assert got["mine"].floor_us == pytest.approx(1.0)
    assert got["mine"].fraction == pytest.approx(0.5)
    assert got["mine"].tb_per_s == pytest.approx(1000 / 2e-6 / 1e12)
    assert (got["mine"].vs_bf16, got["slow"].vs_bf16) == (2.5, 0.625)


@pytest.mark.usefixtures("clock")
def test_a_peer_in_turn_slows_down_with_ours() -> None:
    """Both take half as long again from replay to replay: the ratio is that of each turn."""
    peer, mine = itertools.count(), itertools.count()

    def timed(name: str, base: float, clock: Iterator[int], **more: object) -> Case:
        made = Prepared((lambda: base * 1.5 ** next(clock),), lambda: 0.0)
        return replace(case(name, base, **more), prepare=lambda device: made)

    got = rows(timed("peer", 4.0, peer, baseline=True, in_turn=True), timed("mine", 2.0, mine))
    shift = 1.5**kernel_bench.REPLAYS  # the peer had been timed alone before
    assert got["mine"].vs_bf16 == pytest.approx(2.0 * shift)


@pytest.mark.usefixtures("clock")
def test_a_ratio_is_to_the_peers_of_the_same_family() -> None:
    """A whole prompt and its last chunk have one shape, and are other work."""
    chunk = replace(case("chunk", 1.0, baseline=True), family="chunks")
    got = rows(case("mine", 4.0), chunk, case("whole", 8.0, baseline=True))
    assert (got["mine"].vs_bf16, got["chunk"].vs_bf16) == (2.0, 1.0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("error", [6e-3, float("nan"), float("inf")])
def test_a_wrong_kernel_has_no_time_and_is_no_baseline(error: float) -> None:
    got = rows(case("mine", 2.0), case("wrong", 1.0, error, baseline=True))
    assert got["wrong"].time_us is None
    assert got["wrong"].note.startswith("wrong")
    assert got["mine"].vs_bf16 is None


@pytest.mark.usefixtures("clock")
def test_what_does_not_fit_or_is_not_installed_is_a_row_with_its_reason() -> None:
    got = rows(case("large", 1.0, size=2 * 10**10), case("absent", 1.0, skip="skipped: not installed"))
    assert (got["large"].time_us, got["large"].note) == (None, "skipped: takes 20 GB")
    assert got["absent"].note == "skipped: not installed"


@pytest.mark.usefixtures("clock")
def test_a_peer_that_fails_is_a_row_and_the_others_go_on() -> None:
    def prepare(device: torch.device) -> Prepared:
        raise RuntimeError("too long\nfor this peer")

    got = rows(Case("family", "peer", SHAPE, 1000, prepare), case("mine", 2.0))
    assert (got["peer"].time_us, got["peer"].note) == (None, "failed: too long")
    assert got["mine"].time_us == 2.0


@pytest.mark.parametrize("batch", [1, 3, 16, 64])
def test_ragged_lengths_differ_and_sum_to_what_is_stated(batch: int) -> None:
    lengths = decode_cases.ragged_lengths(batch, 1000)
    assert sum(lengths) == 1000 * batch
    assert min(lengths) > 0
    assert len(set(lengths)) > batch // 2


def test_inputs_rotate_beyond_any_cache() -> None:
    assert SHAPE.sets(10**6) * 10**6 >= kernel_cases.ROTATION_BYTES
    assert SHAPE.sets(10**9) == 1


@pytest.mark.parametrize("name", decode_cases.CACHES)
def test_every_cache_is_right_on_its_random_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cases, "ROTATION_BYTES", 1)
    if not interpreted():
        pytest.skip("the GPU's own tests do this")
    small = replace(SHAPE, batch=2, context=20, kv_heads=1, query_heads=2)
    prepared = next(c for c in decode_cases.decode_cases(small) if c.kernel == name).prepare(CPU)
    assert prepared.error() < prepared.tolerance


def test_bytes_are_those_of_the_layout() -> None:
    sizes = {c.kernel: c.bytes for c in decode_cases.decode_cases(KernelShape(16, 16384))}
    assert sizes["int4"] == 16 * 16384 * 8 * 136
    assert sizes["sdpa_cudnn"] == sizes["bf16_paged"] == 16 * 16384 * 8 * 512
    assert sizes["fbgemm_int4"] == sizes["int4"]


def test_peers_say_when_they_are_not_installed() -> None:
    notes = {c.kernel: c.skip for c in peer_cases(SHAPE)}
    assert notes["sdpa_flash"] == ""
    assert notes["flashinfer_bf16"].startswith("skipped")


def test_a_peer_says_which_shapes_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_peers, "find_spec", lambda name: name)
    for shape, taken in ((KernelShape(16, 16384), True), (KernelShape(1, 32768), False), (SHAPE, False)):
        notes = {c.kernel: c.skip for c in peer_cases(shape)}
        assert notes["fbgemm_int4"].startswith("" if taken else "skipped: takes head_dim 128, 16384 tokens")
        assert bool(notes["fbgemm_int4"]) != taken


def test_a_peer_of_one_kv_head_gets_ours_as_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """fbgemm is not installed here; an attention of the same signature stands for it."""

    def attend(q: Tensor, key: Tensor, value: Tensor, at: Tensor, scale: float, *_: object) -> tuple[Tensor, ...]:
        assert key.shape[2] == q.shape[1] == 1
        keys, values = (_values(x[:, :, 0]).float() for x in (key, value))
        assert (at == keys.shape[1] - 1).all()
        return ((q[:, 0].float() @ keys.mT * scale).softmax(-1) @ values)[:, None].to(q.dtype), at, at

    monkeypatch.setattr(kernel_cases, "ROTATION_BYTES", 1)
    monkeypatch.setattr(decode_peers, "find_spec", lambda name: name)
    for name in ("fbgemm_gpu", "fbgemm_gpu.experimental", "fbgemm_gpu.experimental.gen_ai"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(torch.ops, "fbgemm", types.SimpleNamespace(gqa_attn_splitk=attend), raising=False)
    small = KernelShape(3, 40, query_heads=8, kv_heads=2)
    prepared = next(c for c in peer_cases(small) if c.kernel == "fbgemm_int4").prepare(CPU)
    assert prepared.steps[0]().shape == (3, 8, 128)
    assert prepared.error() < prepared.tolerance


def test_what_a_peer_leaves_open_is_the_fastest_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {2: 3.0, 8: 1.0, 4: 2.0}
    monkeypatch.setattr(decode_peers.timeit, "repeat", lambda timed, **_: [9.0, seconds[timed.args[1]]])

    def run(choice: int) -> None:
        if choice == 1:
            raise RuntimeError("too much shared memory")

    assert _fastest((1, 2, 8, 4), run) == 8
    with pytest.raises(RuntimeError, match="shared memory"):
        _fastest((1,), run)


def test_rows_of_a_peers_int4_cache() -> None:
    pair = torch.tensor([2.0, -1.0], dtype=torch.float16).view(torch.uint8)
    row = torch.cat((pair, torch.tensor([0x3F, 0x80], dtype=torch.uint8)))
    assert _values(row).tolist() == [29.0, 5.0, -1.0, 15.0]


def test_relative_error_counts_nan_as_infinite() -> None:
    one = torch.ones(3)
    assert relative_error(one * 1.5, one) == pytest.approx(0.5)
    assert relative_error(one / 0 * 0, one) == float("inf")


def test_every_family_has_quick_and_grid_shapes() -> None:
    assert FAMILIES.keys() == SHAPES.keys()
    assert all(shapes["quick"] and len(shapes["grid"]) >= len(shapes["quick"]) for shapes in SHAPES.values())
    assert partial(FAMILIES["paged_decode"], SHAPES["paged_decode"]["quick"][0])

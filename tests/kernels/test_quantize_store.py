"""quantize_store writes what the specification writes, byte for byte, and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.pages import DEVICE, HEADS, PAGE, POISON, Case, dense, draw
from sawbench_kernels.codec import decode
from sawbench_kernels.key_bias import Rotary
from sawbench_kernels.paged_decode.naive import KeyBias
from sawbench_kernels.pages import PageLayout, gather
from sawbench_kernels.quantize_store import op
from sawbench_kernels.quantize_store.op import QuantizeStore
from sawbench_kernels.quantize_store.reference import quantize_store, transform
from sawbench_kernels.quantize_store.spec import SideSpec, StoreSpec

CASES = {
    "int4": Case(),
    "int8, fp16 input": Case(bits=(8, 8), dtype=torch.float16),
    "raw": Case(bits=(16, 16)),
    "k8v4": Case(bits=(8, 4)),
    "raw keys, int4 values": Case(bits=(16, 4)),
    "bdr": Case(rotations=(64, 1)),
    "bdr_kv": Case(rotations=(64, 64)),
    "blocks of 16": Case(rotations=(16, 1)),
    "rotation without quantization": Case(bits=(16, 16), rotations=(32, 64)),
    "head 32": Case(dim=32, rotations=(32, 1)),
    "head 96": Case(dim=96, rotations=(32, 16), bits=(4, 8)),
    "head 128": Case(dim=128, rotations=(128, 1)),
    "head 256": Case(dim=256, rotations=(256, 1)),
    "kbias_bdr, 8 pairs": Case(rotations=(64, 1), pairs=8),
    "kbias, all pairs": Case(pairs=32),
    "centre_bdr": Case(rotations=(64, 1), centroids=1),
    "kmeans_bdr": Case(rotations=(64, 1), centroids=16),
    "kmeans, two books, 16-bit indices": Case(centroids=300, books=2),
    "one token": Case(tokens=4, rotations=(64, 1)),
}


def run(case: Case, rows: Tensor | None = None, pool: Tensor | None = None) -> Tensor:
    """The pool after the kernel stored ``rows`` of the case's tokens (all by default)."""
    pool = case.pool() if pool is None else pool
    rows = torch.arange(case.tokens, device=DEVICE) if rows is None else rows
    index = [None if i is None else i[rows] for i in case.indices()]
    key, value = (x[rows] for x in case.vectors())
    store = QuantizeStore(case.spec, DEVICE, positions=1000)
    positions = case.positions()[rows] if case.pairs else None
    store(key, value, pool, case.slots()[rows], positions, *index)
    return pool


def specified(case: Case) -> Tensor:
    pool = case.pool()
    quantize_store(
        *case.vectors(), case.spec.layout.view(pool), case.slots(), case.spec, case.positions(), *case.indices()
    )
    return pool


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bytes_are_those_of_the_specification(case: Case) -> None:
    """Unwritten bytes included: both pools start from the same poison."""
    assert torch.equal(run(case), specified(case))


TURNED = {name: case for name, case in CASES.items() if max(case.rotations) > 1}


@pytest.mark.parametrize("case", TURNED.values(), ids=TURNED)
def test_bytes_are_the_same_where_a_program_takes_both_sides(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does for many tokens."""
    monkeypatch.setattr(op, "MANY", 0)
    assert torch.equal(run(case), specified(case))


@pytest.mark.parametrize("case", [CASES["bdr"], CASES["kmeans_bdr"]], ids=["bdr", "kmeans_bdr"])
@pytest.mark.parametrize("sizes", [(1, 19), (7, 6, 7)])
def test_streamed_equals_one_shot(case: Case, sizes: tuple[int, ...]) -> None:
    pool = case.pool()
    for rows in torch.arange(case.tokens, device=DEVICE).split(sizes):
        run(case, rows, pool)
    assert torch.equal(pool, run(case))


def test_skipped_and_unwritten_slots_keep_their_bytes() -> None:
    case = Case(rotations=(64, 1))
    layout, slots = case.spec.layout, case.slots()
    untouched = torch.ones(case.pages * PAGE, dtype=torch.bool, device=DEVICE)
    untouched[slots[slots >= 0]] = False
    rest = untouched.nonzero().squeeze(1)
    for plane in gather(layout.view(run(case)), rest).values():
        assert (plane.contiguous().view(torch.uint8) == POISON).all()


def test_rotating_keys_alone_leaves_the_values_bytes() -> None:
    plain, turned = Case(), Case(rotations=(64, 1))
    views = [case.spec.layout.view(run(case)) for case in (plain, turned)]
    assert not torch.equal(views[0]["key.codes"], views[1]["key.codes"])
    for name in ("value.codes", "value.pair"):
        assert torch.equal(views[0][name].view(torch.uint8), views[1][name].view(torch.uint8))


def test_a_reused_page_equals_a_fresh_one() -> None:
    first, second = Case(rotations=(64, 1)), Case(rotations=(64, 1))
    used = run(first)
    second.vectors = lambda: tuple(3 * x for x in first.vectors())  # type: ignore[method-assign]
    live = second.slots()[second.slots() >= 0]
    again, fresh = (gather(second.spec.layout.view(pool), live) for pool in (run(second, pool=used), run(second)))
    assert all(torch.equal(again[name], fresh[name]) for name in fresh)


HALF = torch.arange(32)
PAIRS = {
    "half": torch.stack((HALF, HALF + 32), -1),
    "half of a part": torch.stack((HALF[:16], HALF[:16] + 16), -1),
    "half, in no whole chunk": torch.stack((HALF[:12], HALF[:12] + 12), -1),
    "interleaved": torch.arange(64).view(32, 2),
    "backwards": torch.stack((HALF, 63 - HALF), -1),
}


@pytest.mark.parametrize("centroids", [0, 4])
@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_rotary_pairs_lie_where_the_model_has_them(pairs: Tensor, centroids: int) -> None:
    """Dimensions that do not turn have a bias too, and the second head has none in its first pairs."""
    case = Case(rotations=(64, 1), pairs=1, centroids=centroids)
    bias = draw(HEADS, 64, seed=8, dtype=torch.float32)
    bias[1, pairs[:16].flatten()] = 0
    rotary = Rotary(pairs, 1e4 ** (-torch.arange(len(pairs), dtype=torch.float64) / len(pairs)), 1.0)
    case.spec = replace(case.spec, key_bias=KeyBias(bias, rotary))
    assert torch.equal(run(case), specified(case))


def ulp16(x: Tensor) -> Tensor:
    """Spacing of fp16 at ``x``."""
    return 2.0 ** (x.abs().clamp_min(2.0**-14).log2().floor() - 10)


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: torch.full_like(x, 3.0),
    "zero": torch.zeros_like,
    "one-signed": lambda x: x.abs() + 20,
    "channel 0 at 200": lambda x: torch.cat((torch.full_like(x[..., :1], 200), x[..., 1:]), -1),
    "last channel at -10": lambda x: torch.cat((x[..., :-1], torch.full_like(x[..., :1], -10)), -1),
    "huge": lambda x: x * 1e4,
    "tiny": lambda x: x * 1e-6,
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("order", [1, 64])
@pytest.mark.parametrize("rows", ROWS)
def test_every_width_meets_its_theoretical_error(rows: str, order: int, bits: int) -> None:
    """Half a step, plus half an ulp of the stored min and of the stored scale at the last code; bytes as specified."""
    case = Case(bits=(bits, bits), rotations=(order, 1), tokens=4)
    key = ROWS[rows](case.vectors()[0])
    slots, layout = torch.arange(4, device=DEVICE), case.spec.layout
    pools = case.pool(), case.pool()
    QuantizeStore(case.spec, DEVICE)(key, key, pools[0], slots)
    quantize_store(key, key, layout.view(pools[1]), slots, case.spec)
    assert torch.equal(*pools)
    stored = gather(layout.view(pools[0]), slots)
    wanted = transform(key, case.spec.key, None, None).double()
    scale, least = stored["key.pair"].double().unbind(-1)
    error = (decode(stored, "key", bits, case.dim, torch.float64) - wanted).abs().amax(-1)
    assert torch.isfinite(error).all()
    assert (error <= 1.0001 * (scale + ulp16(least) + ((1 << bits) - 1) * ulp16(scale)) / 2).all()


def test_a_dense_rotation_differs_only_at_the_edges_of_a_step() -> None:
    """Its sum has no fixed order; a code may move by one, and only where the value lies on a boundary."""
    case = Case(rotations=(dense(64, HEADS), dense(64)), pairs=4)
    live = case.slots()[case.slots() >= 0]
    mine, theirs = (gather(case.spec.layout.view(pool), live) for pool in (run(case), specified(case)))
    for side in ("key", "value"):
        a, b = (decode(x, side, 4, case.dim, torch.float64) for x in (mine, theirs))
        scale = theirs[f"{side}.pair"][..., :1].double()
        differs = (a - b).abs() > 1e-3 * scale
        assert differs.double().mean() < 1e-3
        assert ((a - b).abs() <= 1.01 * scale).all()


def test_saturation_is_flagged_and_sticky() -> None:
    case = Case(tokens=4)
    key, value = case.vectors()
    store, pool = QuantizeStore(case.spec, DEVICE), case.pool()
    slots = torch.arange(4, device=DEVICE)
    store(key, value, pool, slots)
    assert store.overflow.item() == 0
    huge = key.clone()
    huge[2] *= 1e7
    store(huge, value, pool, torch.where(slots == 2, -1, slots))
    assert store.overflow.item() == 0, "a skipped row cannot saturate anything"
    store(huge, value, pool, slots)
    assert store.overflow.item() == 1
    store(key, value, pool, slots)
    assert store.overflow.item() == 1
    written = gather(case.spec.layout.view(pool), slots)
    assert torch.isfinite(written["key.pair"].float()).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("order", [1, 64])
@pytest.mark.parametrize("saturated", [(), (2,), (0, 1, 2, 3)])
def test_values_beyond_the_last_code_are_clipped_beside_others_that_are_not(
    saturated: tuple[int, ...], order: int, bits: int
) -> None:
    """A pair that saturates ends below the largest value: the kernel clips where a row needs it, and there alone."""
    case = Case(bits=(bits, bits), rotations=(order, order), tokens=4)
    key, value = case.vectors()
    for x in (key, value):
        x[list(saturated)] *= 1e7
    pools = case.pool(), case.pool()
    slots = torch.arange(4, device=DEVICE)
    QuantizeStore(case.spec, DEVICE)(key, value, pools[0], slots)
    quantize_store(key, value, case.spec.layout.view(pools[1]), slots, case.spec)
    assert torch.equal(*pools)


def test_strides_are_followed() -> None:
    """K and V as views of one fused projection, and as transposed [H, T, D]."""
    case = Case(rotations=(64, 1))
    key, value = case.vectors()
    fused = torch.cat((key, value), 1)
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (key, value)]
    for views in ((fused[:, :HEADS], fused[:, HEADS:]), turned):
        pool = case.pool()
        QuantizeStore(case.spec, DEVICE)(*views, pool, case.slots())
        assert torch.equal(pool, specified(case))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.float(), "must be float16 or bfloat16"),
        (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), "contiguous"),
        (lambda x: torch.cat((x, x), -1)[..., 4:68], "16 bytes"),
        (lambda x: x[:, :1], r"\[T, 2, 64\]"),
    ],
)
def test_other_inputs_are_refused(change: Callable[[Tensor], Tensor], message: str) -> None:
    case = Case()
    key, value = case.vectors()
    with pytest.raises(ValueError, match=message):
        QuantizeStore(case.spec, DEVICE)(change(key), value, case.pool(), case.slots())


@pytest.mark.parametrize(
    ("layout", "key", "message"),
    [
        (PageLayout(2, 80, 16), SideSpec(), "head_dim=80"),
        (PageLayout(2, 96, 16), SideSpec(64), r"order 64 for head_dim 96 is not one of \[1, 16, 32\]"),
        (PageLayout(2, 64, 16), SideSpec(torch.eye(32)), "neither"),
        (PageLayout(2, 64, 16), SideSpec(codebook=torch.zeros(2, 4, 64)), "codebook"),
        (PageLayout(2, 64, 16, key_centroids=4), SideSpec(), "no codebook"),
    ],
)
def test_specs_that_no_kernel_serves_are_refused_when_made(layout: PageLayout, key: SideSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuantizeStore(StoreSpec(layout, key), DEVICE)


@pytest.mark.parametrize(
    ("case", "given", "message"),
    [
        (Case(pairs=4), False, "positions"),
        (Case(), True, "positions"),
        (Case(centroids=4), False, "key_index"),
    ],
)
def test_positions_and_indices_come_where_they_are_needed_and_only_there(case: Case, given: bool, message: str) -> None:
    store, pool = QuantizeStore(case.spec, DEVICE, 1000), case.pool()
    positions = case.positions() if given else None
    with pytest.raises(ValueError, match=message):
        store(*case.vectors(), pool, case.slots(), positions)


@pytest.mark.gpu
def test_offsets_beyond_two_gigabytes() -> None:
    case = Case(rotations=(64, 1), tokens=8)
    layout = case.spec.layout
    pages = (5 << 29) // layout.page_bytes
    pool = layout.allocate(pages, DEVICE)
    slots = pages * PAGE - 1 - torch.arange(8, device=DEVICE)
    QuantizeStore(case.spec, DEVICE)(*case.vectors(), pool, slots)
    small = case.pool()
    QuantizeStore(case.spec, DEVICE)(*case.vectors(), small, slots - (pages - case.pages) * PAGE)
    far, near = gather(layout.view(pool), slots), gather(layout.view(small), slots - (pages - case.pages) * PAGE)
    assert all(torch.equal(far[name], near[name]) for name in near)


@pytest.mark.gpu
def test_a_captured_graph_follows_new_slots_and_values() -> None:
    case = Case(rotations=(64, 1))
    (key, value), slots, pool = case.vectors(), case.slots(), case.pool()
    store = QuantizeStore(case.spec, DEVICE)
    key_in, value_in, slots_in = torch.zeros_like(key), torch.zeros_like(value), torch.full_like(slots, -1)
    store(key_in, value_in, pool, slots_in)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        store(key_in, value_in, pool, slots_in)
    for source, target in ((key, key_in), (value, value_in), (slots, slots_in)):
        target.copy_(source)
    graph.replay()
    assert torch.equal(pool, specified(case))


def test_compiles_without_a_graph_break() -> None:
    case = Case(rotations=(64, 1))
    (key, value), slots, pool = case.vectors(), case.slots(), case.pool()
    store = QuantizeStore(case.spec, DEVICE)
    compiled = torch.compile(lambda k, v: store(2 * k, 2 * v, pool, slots), fullgraph=True, backend="aot_eager")
    compiled(key / 2, value / 2)
    assert torch.equal(pool, specified(case))


def test_draws_are_not_degenerate() -> None:
    """The cases above compare real numbers: the poison is overwritten, and not by one value."""
    assert (run(Case()) != Case().pool()).sum() > 1000
    assert draw(4, 4).unique().numel() > 8

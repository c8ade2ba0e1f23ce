"""paged_prefill against its specification in float64, which is itself checked against plain attention."""

import pytest
import torch
from torch import Tensor

from helpers.pages import DEVICE, HEADS, PAGE, Case, dense, draw, filled
from sawbench_kernels.paged_prefill import PagedPrefill, plan_prefill
from sawbench_kernels.paged_prefill.attention import causal_attention
from sawbench_kernels.paged_prefill.naive import paged_prefill

TABLES = [[6, 2, 4], [0], [5, 3, 1]]
CHUNKS, CONTEXTS = (20, 7, 16), (33, 7, 48)
CASES = {
    "int4": Case(pages=8),
    "raw": Case(bits=(16, 16), pages=8),
    "k8v4": Case(bits=(8, 4), pages=8),
    "raw keys": Case(bits=(16, 4), pages=8),
    "bdr_kv": Case(rotations=(64, 64), pages=8),
    "head 96": Case(dim=96, rotations=(32, 1), pages=8),
    "hessian": Case(rotations=(dense(64), dense(64)), pages=8),
    "kbias_bdr, 8 pairs": Case(rotations=(64, 1), pairs=8, pages=8),
    "kbias_bdr, all pairs": Case(rotations=(64, 1), pairs=32, pages=8),
    "kmeans_bdr": Case(rotations=(64, 1), centroids=16, pages=8),
}


def both(case: Case, group: int = 2, workspace: int = 1 << 30, query: Tensor | None = None) -> tuple[Tensor, Tensor]:
    planes = case.spec.layout.view(filled(case, TABLES, CONTEXTS))
    tables = [torch.tensor(table, dtype=torch.int32, device=DEVICE) for table in TABLES]
    q = draw(sum(CHUNKS), HEADS * group, case.dim, seed=60) if query is None else query
    prefill = PagedPrefill(case.spec, case.dim**-0.5, DEVICE, 1000, workspace)
    mine = prefill(q, planes, plan_prefill(tables, CHUNKS, CONTEXTS, PAGE))
    wide = paged_prefill(q, planes, tables, CHUNKS, CONTEXTS, case.spec, case.dim**-0.5, torch.float64)
    return mine, wide


def error(mine: Tensor, wide: Tensor) -> float:
    return ((mine.double() - wide).norm() / wide.norm()).item()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_error_is_that_of_a_16_bit_output(case: Case) -> None:
    """Biases reach 200 and more here; bfloat16 keys would err by several per cent."""
    assert error(*both(case)) < 3e-3


def test_a_bias_needs_its_low_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is sharp: with 16-bit keys alone the same case fails."""
    case, query = CASES["kbias_bdr, 8 pairs"], 8 * draw(sum(CHUNKS), HEADS * 2, 64, seed=60)
    assert error(*both(case, query=query)) < 4e-3
    monkeypatch.setattr("sawbench_kernels.paged_prefill.op._biased_dims", lambda split: torch.full((HEADS, 8), -1))
    assert error(*both(case, query=query)) > 1e-2


@pytest.mark.parametrize("group", [1, 3, 7])
def test_any_number_of_query_heads(group: int) -> None:
    assert error(*both(CASES["bdr_kv"], group)) < 3e-3


def test_turns_over_heads_bound_the_workspace_and_change_nothing() -> None:
    whole, _ = both(CASES["kbias_bdr, 8 pairs"])
    turns, _ = both(CASES["kbias_bdr, 8 pairs"], workspace=1)
    torch.testing.assert_close(whole, turns, rtol=0, atol=1e-2)
    assert error(turns, whole.double()) < 1e-3


def test_the_specification_is_causal_attention_over_each_sequence() -> None:
    """Unquantized pages, in float64: the same as torch's own attention, sequence by sequence."""
    case = Case(bits=(16, 16), rotations=(64, 64), pages=8)
    planes = case.spec.layout.view(filled(case, TABLES, CONTEXTS))
    q = draw(sum(CHUNKS), HEADS * 2, case.dim, seed=60)
    tables = [torch.tensor(table, device=DEVICE) for table in TABLES]
    wide = paged_prefill(q, planes, tables, CHUNKS, CONTEXTS, case.spec, 0.125, torch.float64)
    start = 0
    for i, (chunk, context) in enumerate(zip(CHUNKS, CONTEXTS, strict=True)):
        key, value = draw(context, HEADS, case.dim, seed=20 + i), draw(context, HEADS, case.dim, seed=40 + i)
        k, v = (x.double().transpose(0, 1).repeat_interleave(2, 0) for x in (key, value))
        mask = torch.ones(chunk, context, dtype=torch.bool, device=DEVICE).tril(context - chunk)
        query = q[start : start + chunk].double().transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(query, k, v, mask, scale=0.125)
        got = wide[start : start + chunk].transpose(0, 1)
        assert ((got - expected).norm() / expected.norm()) < 6e-3  # the pages hold rotated bfloat16
        start += chunk


@pytest.mark.parametrize(("tokens", "context"), [(5, 5), (1, 40), (16, 48)])
def test_halves_merge_to_the_whole(tokens: int, context: int) -> None:
    q, k, v = draw(tokens, 4, 64, dtype=torch.float16), draw(context, 2, 64, seed=1), draw(context, 2, 32, seed=2)
    out = causal_attention(q, k.half(), v.half(), 0.5, 2.0, torch.bfloat16) / 2
    wide = [x.transpose(0, 1).double() for x in (q, *(x.repeat_interleave(2, 1) for x in (k.half(), v.half())))]
    mask = torch.ones(tokens, context, dtype=torch.bool, device=DEVICE).tril(context - tokens)
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, mask, scale=0.5).transpose(0, 1)
    assert error(out, expected) < 3e-3


def test_huge_values_stay_finite_and_right() -> None:
    case = Case(pages=8, tokens=33)
    query = draw(sum(CHUNKS), HEADS * 2, case.dim, seed=60) * 1e-3
    planes = case.spec.layout.view(filled(case, TABLES, CONTEXTS))
    for side in ("key", "value"):
        planes[f"{side}.pair"] *= 8000.0
    tables = [torch.tensor(table, device=DEVICE) for table in TABLES]
    prefill = PagedPrefill(case.spec, 1e-3, DEVICE)
    mine = prefill(query, planes, plan_prefill(tables, CHUNKS, CONTEXTS, PAGE))
    wide = paged_prefill(query, planes, tables, CHUNKS, CONTEXTS, case.spec, 1e-3, torch.float64)
    assert wide.abs().max() > 1e4
    assert error(mine, wide) < 3e-3


def test_plans_that_cannot_be_are_refused() -> None:
    table = [torch.zeros(2, dtype=torch.int32)]
    for chunk, context in ((0, 5), (6, 5), (5, 2 * PAGE + 1)):
        with pytest.raises(ValueError, match="chunk"):
            plan_prefill(table, [chunk], [context], PAGE)
    with pytest.raises(ValueError, match="different sequences"):
        plan_prefill(table, [1, 1], [1], PAGE)


def test_compiles_without_a_graph_break() -> None:
    case = CASES["kbias_bdr, 8 pairs"]
    planes = case.spec.layout.view(filled(case, TABLES, CONTEXTS))
    plan = plan_prefill([torch.tensor(t, device=DEVICE) for t in TABLES], CHUNKS, CONTEXTS, PAGE)
    prefill, q = PagedPrefill(case.spec, 0.125, DEVICE, 1000), draw(sum(CHUNKS), HEADS * 2, case.dim, seed=60)
    compiled = torch.compile(lambda q: prefill(2 * q, planes, plan), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), prefill(2 * q, planes, plan))


@pytest.mark.gpu
@pytest.mark.parametrize("case", [Case(dim=128, rotations=(128, 1)), Case(dim=128, rotations=(128, 1), pairs=8)])
def test_long_chunks_by_cudnn(case: Case) -> None:
    """A chunk and a past that are no multiples of the granule: three runs of keys."""
    case.pages, context, chunk = 256, 4000, 1500
    table = torch.randperm(256, generator=torch.Generator().manual_seed(1))
    planes = case.spec.layout.view(filled(case, [table.tolist()], (context,)))
    q = draw(chunk, HEADS * 4, case.dim, seed=60)
    tables = [table.to(DEVICE)]
    mine = PagedPrefill(case.spec, 128**-0.5, DEVICE, 4096)(q, planes, plan_prefill(tables, [chunk], [context], PAGE))
    wide = paged_prefill(q, planes, tables, [chunk], [context], case.spec, 128**-0.5, torch.float64)
    assert error(mine, wide) < 3e-3

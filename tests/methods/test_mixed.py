"""Mixed precision by head: what is measured, who gets the bits, and what is stored."""

from dataclasses import replace

import pytest
import torch

from helpers.methods import bind, load_method, make_facts, synthetic_tensors
from sawbench.methods.mixed import MixedHeads, attention_output, output_errors, sensitivity_rows
from sawbench.methods.parts import LayerSample, Site

FACTS = make_facts(kv_heads=4, layers=3)
PART = MixedHeads(group=16)


def sample(tokens: int = 24, window: int | None = None) -> LayerSample:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(tokens, heads, 64, generator=generator) for heads in (8, 4, 4))
    return LayerSample(query, key, value, torch.randn(96, 8 * 64, generator=generator), 0.2, window)


def projected(one: LayerSample) -> torch.Tensor:
    return attention_output(one) @ one.output_weight.T


@pytest.mark.parametrize("side", ["key", "value"])
def test_sensitivity_is_what_quantizing_one_head_alone_does(side: str) -> None:
    """One pass over all heads gives what a pass for each of them gives."""
    exact = sample()
    quantizer = PART.quantizer(4)
    x = exact.side(side)
    coarse = quantizer.decode(quantizer.encode(x[None]), 64, torch.float32)[0]
    expected = []
    for head in range(4):
        changed = x.clone()
        changed[:, head] = coarse[:, head]
        moved = projected(replace(exact, **{side: changed})) - projected(exact)
        expected.append(float(moved.norm() / projected(exact).norm()))
    found = PART.fit(exact, side, seed=0)["sensitivity"]
    assert found.tolist() == pytest.approx(expected, rel=1e-3)
    assert min(expected) > 0


def test_the_output_is_causal_attention_in_windows_that_do_not_see_each_other() -> None:
    whole, first = sample(24, 12), sample(24)
    scores = (first.query.transpose(0, 1) @ first.key.repeat_interleave(2, 1).permute(1, 2, 0)) * 0.2
    hidden = torch.ones(24, 24, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ first.value.repeat_interleave(2, 1).transpose(0, 1)
    assert torch.allclose(attention_output(first), expected.transpose(0, 1).flatten(1), atol=1e-5)
    halves = [LayerSample(*(x[at : at + 12] for x in (whole.query, whole.key, whole.value)), whole.output_weight, 0.2)
              for at in (0, 12)]  # fmt: skip
    assert torch.allclose(attention_output(whole), torch.cat([attention_output(half) for half in halves]), atol=1e-6)


def test_an_outlier_head_is_the_most_sensitive_one() -> None:
    exact = sample()
    exact.key[:, 2, 5] = 60
    assert int(PART.fit(exact, "key", seed=0)["sensitivity"].argmax()) == 2
    assert output_errors(exact, exact).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("average", "heads"), [(4.0, 0), (5.0, 6), (6.0, 12), (8.0, 24)])
def test_the_budget_is_spent_on_the_most_sensitive_heads_of_the_whole_model(average: float, heads: int) -> None:
    method = load_method("mixed", average_bits=average)
    rows = sensitivity_rows(synthetic_tensors(method, FACTS))
    assert len(rows) == 2 * 3 * 4
    kept = [row["error"] for row in rows if row["bits"] == 8]
    others = [row["error"] for row in rows if row["bits"] == 4]
    assert len(kept) == heads
    assert min(kept, default=1) >= max(others, default=0)
    assert sum(row["bits"] for row in rows) / len(rows) == average


@pytest.mark.parametrize("high", [8, 16])
def test_each_head_is_stored_with_its_bits_in_its_place(high: int) -> None:
    bits = torch.tensor([4, high, 4, high], dtype=torch.uint8)
    part = replace(PART, high=high)
    bound = part.bind(Site(FACTS, 0, "key", {"bits": bits}))
    x = torch.randn(2, 5, 4, 64, generator=torch.Generator().manual_seed(2))
    decoded = bound.decode(bound.encode(x), 64, torch.float32)
    for head, width in enumerate(bits.tolist()):
        alone = part.quantizer(width)
        assert torch.equal(decoded[:, :, [head]], alone.decode(alone.encode(x[:, :, [head]]), 64, torch.float32))
    stored = sum(plane.nbytes for plane in bound.encode(x).values())
    assert stored == bound.bytes_per_vector(64) * 2 * 5 * 4


def test_layers_may_have_one_width_alone() -> None:
    for width in (4, 8):
        bits = torch.full((4,), width, dtype=torch.uint8)
        bound = PART.bind(Site(FACTS, 0, "value", {"bits": bits}))
        x = torch.randn(1, 3, 4, 64)
        assert {name.rpartition(".")[2] for name in bound.encode(x)} == {str(width)}
        assert bound.decode(bound.encode(x), 64, torch.float32).shape == x.shape


def test_both_sides_of_every_layer_are_bound_to_their_own_assignment() -> None:
    method = load_method("mixed")
    tensors = synthetic_tensors(method, FACTS)
    for at, layer in enumerate(bind(method, FACTS)):
        for name, side in (("key", layer.key), ("value", layer.value)):
            heads = side.quantizer.heads.get(8, torch.tensor([], dtype=torch.int64))
            assert heads.tolist() == (tensors[f"{name}.{at}.bits"] == 8).nonzero()[:, 0].tolist()

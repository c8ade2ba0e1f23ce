"""Offsets: what is subtracted before quantizing comes back exactly."""

from dataclasses import replace

import pytest
import torch

from helpers.methods import bind, load_method, make_facts
from sawbench.core.errors import UserError
from sawbench.methods.offsets import BoundCodebook, Codebook, KeyBias
from sawbench.methods.parts import LayerSample, ModelFacts, Site
from sawbench_kernels.key_bias import rotated_bias, split_bias
from sawbench_kernels.kmeans_assign.naive import assign

WHERE = torch.tensor([[0, 1, 7, 500, 4000, 100_000]])


def test_nearest_centroid_is_the_nearest() -> None:
    x, centroids = torch.randn(50, 8, dtype=torch.float64), torch.randn(20, 8, dtype=torch.float64)
    assert torch.equal(assign(x, centroids), torch.cdist(x, centroids).argmin(-1))


@pytest.mark.parametrize(("centroids", "dtype"), [(1, torch.uint8), (256, torch.uint8), (257, torch.uint16)])
def test_index_width_follows_the_codebook(centroids: int, dtype: torch.dtype) -> None:
    book = BoundCodebook(torch.randn(1, centroids, 2, 8))
    planes = book.describe(torch.randn(1, 5, 2, 8))
    assert planes["index"].dtype == dtype
    assert planes["index"].shape == (1, 5, 1)
    assert book.value(planes, WHERE, torch.float32).shape == (1, 5, 2, 8)


@pytest.mark.parametrize(("heads", "books"), [("all", 1), (1, 4), (2, 2)])
def test_heads_per_codebook(heads: int | str, books: int) -> None:
    keys = torch.randn(100, 4, 8)
    fitted = Codebook(4, heads).fit(LayerSample(keys, keys, keys, torch.zeros(1, 1)), "key", 0)["codebooks"]
    assert fitted.shape == (books, 4, 4 // books, 8)


def test_clusters_are_found_and_residuals_shrink() -> None:
    centres = torch.tensor([[30.0] * 16, [-30.0] * 16])
    keys = (centres[torch.arange(200) % 2] + torch.randn(200, 16)).unflatten(-1, (2, 8))
    book = BoundCodebook(Codebook(2).fit(LayerSample(keys, keys, keys, torch.zeros(1, 1)), "key", 0)["codebooks"])
    x = keys[None]
    residual = x - book.value(book.describe(x), WHERE, torch.float32)
    assert float(residual.abs().max()) < 6


def test_too_few_tokens_for_a_codebook_is_said() -> None:
    keys = torch.randn(10, 2, 8)
    with pytest.raises(UserError, match="calibration tokens; got 10"):
        Codebook(16).fit(LayerSample(keys, keys, keys, torch.zeros(1, 1)), "key", 0)


def test_rotated_bias_is_a_rotation_at_every_position() -> None:
    facts = make_facts()
    turned = rotated_bias(facts.key_bias[0].double(), facts.rotary, WHERE)
    assert torch.allclose(turned[0, 0], facts.key_bias[0].double())
    norms = turned.norm(dim=-1)
    assert torch.allclose(norms, facts.key_bias[0].double().norm(dim=-1).expand_as(norms), rtol=1e-6)
    # q_i . R_j b depends on i - j alone
    at, later = rotated_bias(facts.key_bias[1].double(), facts.rotary, torch.tensor([3, 10])).unbind(0)
    far, further = rotated_bias(facts.key_bias[1].double(), facts.rotary, torch.tensor([1003, 1010])).unbind(0)
    assert torch.allclose((at * later).sum(-1), (far * further).sum(-1), rtol=1e-4)


@pytest.mark.parametrize("pairs", [1, 8, None])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_scores_with_the_split_equal_scores_without_it(pairs: int | None, dtype: torch.dtype, bound: float) -> None:
    """q . K = q . (K - R_j b) + q . R_j b with nothing quantized, relative to the scores' size; any subset of pairs."""
    facts = make_facts(bias=100.0)
    bias = split_bias(facts.key_bias[0], facts.rotary, pairs).to(dtype)
    turned = rotated_bias(bias, facts.rotary, WHERE)
    key = torch.randn(1, 6, 2, 64, dtype=dtype) + rotated_bias(facts.key_bias[0].to(dtype), facts.rotary, WHERE)
    query = torch.randn(1, 1, 2, 64, dtype=dtype)
    plain = (query * key).sum(-1)
    split = (query * (key - turned)).sum(-1) + (query * turned).sum(-1)
    assert float((plain - split).abs().max() / plain.abs().max()) < bound


def test_split_takes_the_pairs_of_largest_bias() -> None:
    facts = make_facts()
    bias = facts.key_bias[0]
    first, second = facts.rotary.pairs.unbind(-1)
    taken = split_bias(bias, facts.rotary, 8)
    energy = bias[:, first].square() + bias[:, second].square()
    kept = taken[:, first].square() + taken[:, second].square()
    assert (kept > 0).sum(-1).tolist() == [8, 8]
    assert torch.allclose(kept.sum(-1), energy.topk(8, -1).values.sum(-1))


def test_the_split_rescues_keys_with_a_large_bias() -> None:
    """Known fault 11, in small: with a bias of 100 INT4 and BDR lose the token's own part, the split keeps it."""
    facts = make_facts(bias=100.0)
    own = torch.randn(1, 6, 2, 64, dtype=torch.float64)
    key = own + rotated_bias(facts.key_bias[0].double(), facts.rotary, WHERE)

    def error(name: str) -> float:
        side = bind(load_method(name), facts)[0].key
        return float((side.decode(side.encode(key, WHERE), WHERE, torch.float64) - key).norm() / own.norm())

    assert error("int4") > 3
    assert error("bdr") > 3
    assert error("kbias") < 0.15
    assert error("kbias_bdr") < 0.15


def test_without_bias_the_split_says_so_and_equals_bdr(caplog: pytest.LogCaptureFixture) -> None:
    facts = make_facts()
    plain = ModelFacts("no-bias", facts.shape, facts.rotary, None)
    x, where = torch.randn(1, 6, 2, 64), torch.arange(6)[None]
    split, bdr = (bind(load_method(name), plain)[0].key.encode(x, where) for name in ("kbias_bdr", "bdr"))
    assert all(torch.equal(split[name], bdr[name]) for name in bdr)
    assert "no-bias has no key bias" in caplog.text


def test_an_obstacle_refuses_the_split_by_name() -> None:
    facts = make_facts()
    blocked = ModelFacts("glm", facts.shape, facts.rotary, None, bias_obstacle="keys are normalised after the bias")
    with pytest.raises(UserError, match="glm: keys are normalised after the bias"):
        load_method("kbias_bdr").check(blocked)
    with pytest.raises(UserError, match="for keys"):
        KeyBias().check(facts, "value")


def test_auto_takes_as_many_pairs_as_a_layer_needs() -> None:
    """Eight where eight are enough, a power of two that leaves no large pair elsewhere."""
    facts = make_facts()
    bias = torch.full((2, 64), 0.5)
    bias[0, :11] = 40.0  # eleven pairs (d, d + 32) of the first head
    made = [KeyBias(pairs="auto").bind(Site(replace(facts, key_bias=(b,)), 0, "key")) for b in (bias, bias * 0.1)]
    assert [int((each.bias[0] != 0).sum()) // 2 for each in made] == [16, 8]
    assert float((bias - made[0].bias).abs().max()) == 0.5


def test_partial_split_of_the_bias_still_binds() -> None:
    facts = make_facts()
    bound = KeyBias(pairs=4).bind(Site(facts, 0, "key"))
    assert (bound.bias != 0).sum(-1).tolist() == [8, 8]

"""Attention over the cache against plain mathematics; with quantization off every path is plain attention."""

import math

import pytest
import torch
from torch.profiler import profile

import sawbench.attention.naive as naive
from helpers.methods import bind, load_method, make_facts
from sawbench.attention.naive import attend, attend_exact
from sawbench.cache.view import LayerView
from sawbench.methods.method import BoundLayer, Side
from sawbench.methods.quantizers import Raw
from sawbench_kernels.key_bias import rotated_bias

FACTS = make_facts(head_dim=32, bias=20.0)


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    group = query.shape[1] // key.shape[2]
    k, v = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, k, v, allowed, scale=0.25).transpose(1, 2)


def stored(layer: BoundLayer, key: torch.Tensor, value: torch.Tensor, where: torch.Tensor) -> LayerView:
    stores = layer.key.new_store(), layer.value.new_store()
    for store, x in zip(stores, (key, value), strict=True):
        store.append(x, where)
    return LayerView(layer, *stores, where)


def inputs(tokens: int = 5, length: int = 9, heads: int = 4):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, heads, tokens, 32, generator=generator, dtype=torch.float64)
    where = torch.arange(length).expand(2, length)
    key, value = (torch.randn(2, length, 2, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    key = key + rotated_bias(FACTS.key_bias[0].double(), FACTS.rotary, where)
    causal = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
    return query, key, value, where, causal


@pytest.mark.parametrize("heads", [2, 4, 12, 14])
def test_exact_attention_is_sdpa(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any GQA ratio, and in blocks of query rows as well as whole."""
    query, key, value, _, causal = inputs(heads=heads)
    expected = plain(query, key, value, causal)
    assert torch.allclose(attend_exact(query, key, value, None, 0.25), expected)
    monkeypatch.setattr(naive, "SCORE_ELEMENTS", 1)
    assert torch.allclose(attend_exact(query, key, value, None, 0.25), expected)
    assert torch.allclose(attend_exact(query, key, value, causal[None, None], 0.25), expected)


def test_without_quantizer_every_method_is_plain_attention(method_name: str) -> None:
    """Known fault 8: quantization off, offsets and rotations on."""
    method = load_method(method_name)
    bare = type(method)(method.name, *(Side(s.offset, s.transform, Raw("compute")) for _, s in method.sides()))
    layer = bind(bare, FACTS)[0]
    query, key, value, where, causal = inputs()
    view = stored(layer, key, value, where)
    error = (attend(query, view, None, 0.25) - plain(query, key, value, causal)).abs().max()
    assert float(error) < 1e-5  # learned matrices are stored in float32


def test_attention_reads_what_is_decoded(method_name: str) -> None:
    """Scores in the rotated space plus scores of the offset equal attention over the decoded K and V."""
    layer = bind(load_method(method_name), FACTS)[0]
    query, key, value, where, causal = inputs()
    view = stored(layer, key, value, where)
    decoded = [layer.key.read(view.key, where, torch.float64), layer.value.read(view.value, where, torch.float64)]
    out = attend(query, view, None, 0.25)
    assert torch.allclose(out, plain(query, *decoded, causal), atol=1e-5)


def test_a_query_that_may_look_nowhere_stays_finite() -> None:
    query, key, value, _, _ = inputs()
    assert attend_exact(query, key, value, torch.zeros(2, 1, 5, 9, dtype=torch.bool), 0.25).isfinite().all()


def test_keys_and_values_are_never_copied_for_each_query_head(method_name: str) -> None:
    """A decode step, 8 query heads to a KV head: nothing that it handles is larger than K itself."""
    layer = bind(load_method(method_name), FACTS)[0]
    query, key, value, where, _ = inputs(tokens=1, length=300, heads=16)
    view = stored(layer, key, value, where)
    with torch.inference_mode(), profile(record_shapes=True) as seen:
        attend(query, view, None, 0.25)
    handled = [math.prod(shape) for event in seen.events() or () for shape in event.input_shapes if shape]
    assert max(handled) == key.numel()

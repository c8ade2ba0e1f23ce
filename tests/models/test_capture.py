"""What is captured is what attention is given, and watching changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from models.shapes import tiny_model
from sawbench.attention.hf import cache_argument
from sawbench.models import LoadedModel, capture_layers
from sawbench.models.capture import watching


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_model(num_attention_heads=6, num_key_value_heads=2, head_dim=24)


TOKENS = torch.tensor([[72, 101, 108, 108, 111]])


def ignore(module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
    pass


def test_samples_have_the_shapes_that_calibration_wants(loaded: LoadedModel) -> None:
    samples = capture_layers(loaded, TOKENS)
    assert len(samples) == 2
    for sample in samples:
        assert sample.query.shape == (5, 6, 24)
        assert sample.key.shape == sample.value.shape == (5, 2, 24)
        assert sample.output_weight.shape == (64, 6 * 24)
        assert {t.dtype for t in (sample.query, sample.key, sample.value, sample.output_weight)} == {torch.float32}


def test_captured_keys_and_values_are_those_of_the_cache(loaded: LoadedModel) -> None:
    cache = DynamicCache()
    with torch.no_grad():
        loaded.model(input_ids=TOKENS, use_cache=True, **{cache_argument(loaded.model): cache})
    for layer, sample in zip(cache.layers, capture_layers(loaded, TOKENS), strict=True):
        assert torch.equal(layer.keys[0].transpose(0, 1), sample.key)
        assert torch.equal(layer.values[0].transpose(0, 1), sample.value)


def test_the_attention_implementation_comes_back_even_after_an_error(loaded: LoadedModel) -> None:
    before = loaded.model.config._attn_implementation
    capture_layers(loaded, TOKENS)
    assert loaded.model.config._attn_implementation == before
    with pytest.raises(KeyError), watching(loaded.model, ignore):
        raise KeyError
    assert loaded.model.config._attn_implementation == before


def test_padding_is_masked_while_watching(loaded: LoadedModel) -> None:
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.int64), TOKENS), 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    with torch.no_grad(), watching(loaded.model, ignore):
        batch = loaded.model(input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
        alone = loaded.model(input_ids=TOKENS)
    torch.testing.assert_close(batch.logits[:, 3:], alone.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "phi", "opt"])
def test_output_projections_of_other_names_and_layouts_are_found(model_type: str) -> None:
    loaded = tiny_model(model_type, num_key_value_heads=4, word_embed_proj_dim=64)
    sample = capture_layers(loaded, TOKENS)[0]
    assert sample.output_weight.shape == (64, 64)

"""Rotary embeddings found by measuring them agree with the models they were found in."""

import sys
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.shapes import tiny_plan
from sawbench.models.rotary import find_rotary, position_dependent
from sawbench_kernels.key_bias import rotated_bias

HALF = [[i, i + 8] for i in range(8)]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
PAIRS = {
    "llama": HALF,
    "qwen2": HALF,
    "qwen3": HALF,
    "glm4": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "glm4_moe": [[i, i + 4] for i in range(4)],
    "gpt_neox": [[0, 2], [1, 3]],
    "phi": [[i, i + 4] for i in range(4)],
    "starcoder2": HALF,
    "cohere": [[2 * i, 2 * i + 1] for i in range(8)],
    "ernie4_5": [[2 * i, 2 * i + 1] for i in range(8)],
}


def built(model_type: str, **fields: Any) -> Any:
    return AutoModelForCausalLM.from_config(tiny_plan(model_type, **fields).hf_config)


@pytest.mark.parametrize("model_type", PAIRS)
def test_pair_order_and_partial_rotary_come_from_the_model(model_type: str) -> None:
    rotary = find_rotary(built(model_type), 16)
    assert rotary is not None
    assert rotary.pairs.tolist() == PAIRS[model_type]
    assert rotary.inv_freq.dtype == torch.float64


@pytest.mark.parametrize(("model_type", "fields"), [(name, {}) for name in PAIRS] + [
    ("qwen2", {"rope_parameters": YARN}), ("llama", {"rope_parameters": LLAMA3})])  # fmt: skip
def test_a_rotated_bias_is_what_the_model_makes_of_it(model_type: str, fields: dict[str, Any]) -> None:
    model = built(model_type, **fields)
    rotary = find_rotary(model, 16)
    assert rotary is not None
    bias, positions = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 64, 77, 150])
    cos, sin = model.base_model.rotary_emb(bias, positions[None])
    apply = sys.modules[type(model).__module__].apply_rotary_pos_emb
    states = bias[None, :, None].expand(1, 2, len(positions), 16)
    turned = states[..., :8] if model_type == "phi" else states  # its attention keeps the other half to itself
    theirs = torch.cat((apply(turned, turned, cos, sin)[1], states[..., turned.shape[-1] :]), -1)[0].transpose(0, 1)
    torch.testing.assert_close(rotated_bias(bias, rotary, positions), theirs, atol=1e-5, rtol=0)


def test_attention_scaling_comes_from_the_model() -> None:
    rotary = find_rotary(built("qwen2", rope_parameters=YARN), 16)
    assert rotary is not None
    assert rotary.scaling == pytest.approx(0.1 * torch.tensor(4.0).log().item() + 1)


def test_it_is_known_before_weights_are() -> None:
    plan = tiny_plan("glm4")
    loaded = find_rotary(built("glm4"), 16)
    assert plan.facts.rotary is not None
    assert loaded is not None
    assert torch.equal(plan.facts.rotary.pairs, loaded.pairs)
    assert torch.equal(plan.facts.rotary.inv_freq, loaded.inv_freq)


def test_frequencies_that_depend_on_the_position_are_named() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert position_dependent(tiny_plan(rope_parameters=dynamic).hf_config) == "dynamic"
    assert position_dependent(tiny_plan(rope_parameters=YARN).hf_config) is None


def test_a_model_with_learned_positions_has_no_rotary_embedding() -> None:
    assert tiny_plan("gpt2").facts.rotary is None

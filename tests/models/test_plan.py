"""What a plan knows without weights, and what it refuses by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from models.shapes import tiny_config, tiny_plan
from sawbench.config import choices, group_config
from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.models import has_weights, plan_model
from sawbench.models.architecture import kv_shape, layer_kinds, make_config

PUBLISHED = {
    # name: KV shape, parameters in 1e9 (text decoder, tied embeddings once, no draft layers), context
    "smollm2-135m": (KVShape(30, 9, 3, 64), 0.1345, 8192),
    "qwen2.5-coder-0.5b": (KVShape(24, 14, 2, 64), 0.494, 32768),
    "qwen2.5-coder-1.5b": (KVShape(28, 12, 2, 128), 1.544, 32768),
    "qwen3-0.6b": (KVShape(28, 16, 8, 128), 0.596, 40960),
    "qwen3-4b": (KVShape(36, 32, 8, 128), 4.022, 262144),
    "qwen3-8b": (KVShape(36, 32, 8, 128), 8.191, 40960),
    "qwen3-32b": (KVShape(64, 64, 8, 128), 32.76, 40960),
    "glm-4.7": (KVShape(92, 96, 8, 128), 352.8, 202752),
    "llama-3.1-8b": (KVShape(32, 32, 8, 128), 8.030, 131072),
    "llama-4-scout": (KVShape(48, 40, 8, 128), 107.8, 10485760),
}


def shipped(name: str) -> Any:
    return make_config(OmegaConf.to_container(group_config("model", name).config))  # type: ignore[arg-type]


def test_every_model_file_is_named_after_its_model_and_checked_here() -> None:
    assert all(group_config("model", name).name == name for name in choices("model"))
    assert set(choices("model")) == {*PUBLISHED, "tiny"}
    assert len({tuple(sorted(group_config("model", name))) for name in choices("model")}) == 1, "same options in each"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_configuration_is_the_published_model(name: str) -> None:
    config, (shape, billions, context) = shipped(name), PUBLISHED[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert kv_shape(config) == shape
    assert config.max_position_embeddings == context
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_qwen3_8b_takes_147456_bytes_a_token_in_bf16() -> None:
    assert 2 * kv_shape(shipped("qwen3-8b")).values_per_token == 147_456


def test_scout_attends_fully_in_every_fourth_layer() -> None:
    kinds = layer_kinds(shipped("llama-4-scout"))
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == list(range(3, 48, 4))


def test_scout_is_refused_by_name_even_without_weights() -> None:
    with pytest.raises(UserError, match=r"model=llama-4-scout: 36 of 48 layers .*chunked_attention"):
        plan_model(group_config("model", "llama-4-scout"))


REFUSED = {
    "sliding window in use": ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64,
                               "max_window_layers": 1}, "1 sliding_attention"),
    "sliding window everywhere": ({"model_type": "mistral", "sliding_window": 64}, "0 sliding_attention"),
    "sliding layers of several": ({"model_type": "gemma3_text", "query_pre_attn_scalar": 16}, "sliding_attention"),
    "linear attention": ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
                         "0 linear_attention"),
    "state space": ({"model_type": "mamba"}, None),
    "hybrid": ({"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1}, "0 (mamba|linear_attention)"),
    "latent attention": ({"model_type": "deepseek_v3"}, "MLA"),
    "encoder-decoder": ({"model_type": "t5"}, "encoder-decoder"),
    "cross attention": ({"model_type": "bert", "is_decoder": True, "add_cross_attention": True}, "cross-attention"),
    "soft-capped logits": ({"model_type": "gemma2", "layer_types": ["full_attention"] * 2}, "soft-capped"),
    "no attention interface": ({"model_type": "bloom"}, "attention interface"),
    "no such architecture": ({"model_type": "nonesuch"}, "model.config.model_type=nonesuch"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_by_name_in_one_line(kind: str) -> None:
    fields, named = REFUSED[kind]
    with pytest.raises(UserError, match=named) as caught:
        plan_model(tiny_config(**fields))
    assert "\n" not in str(caught.value)


def test_a_sliding_window_that_is_not_used_is_no_sliding_window() -> None:
    assert tiny_plan(use_sliding_window=False, sliding_window=64).shape.layers == 2


def test_the_shape_follows_the_options() -> None:
    plan = tiny_plan(num_key_value_heads=1, head_dim=24, num_hidden_layers=3, max_position_embeddings=128)
    assert plan.shape == KVShape(3, 4, 1, 24)
    assert plan.max_length == 128


def test_missing_weights_are_one_line_that_says_how_to_get_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"hf download Qwen/Qwen3-4B-Thinking-2507.*model.path=") as caught:
        plan_model(group_config("model", "qwen3-4b"))
    assert "\n" not in str(caught.value)
    plan = plan_model(group_config("model", "qwen3-4b"), need_weights=False)
    assert has_weights(plan) == str(caught.value)


def test_the_default_model_says_how_its_weights_are_fetched(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SAWBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("sawbench.models.wheel._installed", lambda wheel: None)
    with pytest.raises(UserError, match=r"python -m sawbench\.models\.fetch smollm2-135m"):
        plan_model(group_config("model", "smollm2-135m"))


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("weights", "learned", "model.weights=learned is not one of: pretrained, random"),
        ("path", "/no/such/folder", "model.path=/no/such/folder"),
        ("hub", "someone/unknown-model", "hf download someone/unknown-model"),
    ],
)
def test_an_illegal_option_is_named(option: str, value: str, named: str) -> None:
    config = group_config("model", "qwen3-0.6b")
    config[option] = value
    with pytest.raises(UserError, match=named):
        plan_model(config)


def test_identity_tells_shapes_and_seeds_apart_and_forgets_the_machine() -> None:
    plans = [tiny_plan(), tiny_plan(num_key_value_heads=1), tiny_plan(seed=1)]
    assert len({str(plan.identity) for plan in plans}) == 3
    assert tiny_plan().identity == tiny_plan().identity
    assert not any("/" in str(value) for value in tiny_plan().identity.values())

"""The key bias that is found is the one that the model adds, and splitting it off changes no score."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.shapes import tiny_model, tiny_plan
from sawbench.config import group_config
from sawbench.core.errors import UserError
from sawbench.methods.method import Side
from sawbench.methods.offsets import KeyBias, NoOffset
from sawbench.methods.parts import Site
from sawbench.methods.quantizers import Raw
from sawbench.models import LoadedModel, plan_model
from sawbench.models.capture import watching
from sawbench.models.key_bias import SplitError, learn_key_bias, measure_key_bias
from sawbench_kernels.key_bias import rotated_bias

BIASED: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "glm4": {"attention_bias": True},
    "glm4_moe": {"attention_bias": True, "use_qk_norm": False},
    "llama": {"attention_bias": True},
    "starcoder2": {},
}
LENGTHS = (11, 4, 7)


def left_padded_keys(loaded: LoadedModel) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Positions [B, T], and each layer's query [B, Hq, T, D] and key [B, T, H, D], of a left-padded batch."""
    longest = max(LENGTHS)
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in LENGTHS])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ids = torch.randint(0, 256, mask.shape, generator=torch.Generator().manual_seed(2))
    queries: list[Tensor] = []
    keys: list[Tensor] = []

    def keep(module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
        queries.append(query)
        keys.append(key.transpose(1, 2))

    with torch.no_grad(), watching(loaded.model, keep):
        loaded.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    return positions, queries, keys


@pytest.mark.parametrize("model_type", BIASED)
def test_the_measured_bias_is_the_parameter(model_type: str) -> None:
    loaded = tiny_model(model_type, **BIASED[model_type])
    assert loaded.facts.key_bias is not None
    for layer, bias in zip(loaded.model.model.layers, loaded.facts.key_bias, strict=True):
        assert bias.dtype == torch.float32
        assert torch.equal(bias, layer.self_attn.k_proj.bias.unflatten(0, (2, 16)))


def test_a_fused_projection_gives_its_keys_part() -> None:
    loaded = tiny_model("gpt_neox", attention_bias=True, num_key_value_heads=4)
    assert loaded.facts.key_bias is not None
    for layer, bias in zip(loaded.model.gpt_neox.layers, loaded.facts.key_bias, strict=True):
        assert torch.equal(bias, layer.attention.query_key_value.bias.view(4, 3, 16)[:, 1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("model_type", BIASED)
def test_scores_with_the_split_equal_scores_without(model_type: str, dtype: torch.dtype, tolerance: float) -> None:
    loaded = tiny_model(model_type, dtype, **BIASED[model_type])
    positions, queries, keys = left_padded_keys(loaded)
    for layer, (query, key) in enumerate(zip(queries, keys, strict=True)):
        side = Side(offset=KeyBias(), quantizer=Raw("compute")).bind(Site(loaded.facts, layer, "key"))
        residual = side.encode(key, positions)
        split = side.decode(residual, positions, dtype)
        scores = [torch.einsum("bhgtd,bshd->bhgts", query.unflatten(1, (2, 2)), k) for k in (key, split)]
        torch.testing.assert_close(scores[1], scores[0], atol=tolerance, rtol=0)


@pytest.mark.parametrize("model_type", BIASED)
def test_what_is_left_of_a_key_knows_nothing_of_its_bias(model_type: str) -> None:
    """Two models that differ in nothing but the key bias of their last layer leave the same residual there."""
    loaded, other = (tiny_model(model_type, torch.float64, **BIASED[model_type]) for _ in range(2))
    other.model.model.layers[-1].self_attn.k_proj.bias.data.mul_(-30)
    biases = measure_key_bias(other.model, other.facts.rotary)  # type: ignore[arg-type]
    assert biases is not None
    assert loaded.facts.key_bias is not None
    assert loaded.facts.rotary is not None
    residuals = []
    for model, bias in ((loaded, loaded.facts.key_bias[-1]), (other, biases[-1])):
        positions, _, keys = left_padded_keys(model)
        residuals.append(keys[-1] - rotated_bias(bias.double(), loaded.facts.rotary, positions))
    torch.testing.assert_close(residuals[0], residuals[1], atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    "fields", [{"model_type": "llama"}, {"model_type": "qwen3"}, {"model_type": "glm4", "attention_bias": False}]
)
def test_keys_without_a_bias_have_neither_bias_nor_obstacle(fields: dict[str, Any]) -> None:
    loaded = tiny_model(**fields)
    assert loaded.facts.key_bias is None
    assert loaded.facts.bias_obstacle is None


def test_a_bias_of_zeros_is_no_bias() -> None:
    loaded = tiny_model()
    for layer in loaded.model.model.layers:
        layer.self_attn.k_proj.bias.data.zero_()
    assert measure_key_bias(loaded.model, loaded.facts.rotary) is None  # type: ignore[arg-type]


OBSTACLES: dict[str, dict[str, Any]] = {
    r"layer 0 normalises keys between bias and RoPE \(k_norm\)": {
        "model_type": "glm4_moe", "attention_bias": True, "use_qk_norm": True},
    r"normalises keys .*k_norm": {"model_type": "qwen3", "attention_bias": True},
    r"clip_qkv=8": {"model_type": "olmo", "attention_bias": True, "clip_qkv": 8.0},
    r"rope_type=dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    r"rope_type=longrope": {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 2048}},
    r"no rotary embedding": {"model_type": "gpt2"},
}  # fmt: skip


@pytest.mark.parametrize("named", OBSTACLES)
def test_what_stands_between_bias_and_rope_is_named_before_weights_load(named: str) -> None:
    facts = tiny_plan(**OBSTACLES[named]).facts
    with pytest.raises(UserError, match=named):
        KeyBias().check(facts, "key")


def test_glm_moe_without_key_norm_has_no_obstacle() -> None:
    assert tiny_plan("glm4_moe", attention_bias=True, use_qk_norm=False).facts.bias_obstacle is None


def test_glm_4_7_as_shipped_is_refused_for_its_key_norm() -> None:
    facts = plan_model(group_config("model", "glm-4.7"), need_weights=False).facts
    assert facts.bias_obstacle is not None
    assert "k_norm" in facts.bias_obstacle


def squash(module: Any, args: Any, output: Tensor) -> Tensor:
    return output.tanh()


def test_a_nonlinearity_that_no_name_betrays_is_measured() -> None:
    loaded = tiny_model()
    loaded.model.model.layers[1].self_attn.k_proj.register_forward_hook(squash)
    facts = learn_key_bias(loaded.facts, loaded.model)
    with pytest.raises(UserError, match="keys of layer 1 differ"):
        KeyBias().check(facts, "key")
    NoOffset().check(facts, "key")


def test_the_wrong_rotary_embedding_is_noticed() -> None:
    loaded = tiny_model()
    assert loaded.facts.rotary is not None
    interleaved = replace(loaded.facts.rotary, pairs=torch.arange(16).view(8, 2))
    with pytest.raises(SplitError, match="keys of layer 0 differ"):
        measure_key_bias(loaded.model, interleaved)

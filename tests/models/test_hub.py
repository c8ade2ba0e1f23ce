"""Weights in the hub's cache and in folders, with the hub switched off (as it is for every test)."""

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

from models.hub_cache import COMMIT, TINY_QWEN3, write_hub_model
from models.shapes import CPU
from sawbench.config import group_config
from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.models import has_weights, load_model, plan_model

HUB = "Qwen/Qwen3-4B-Thinking-2507"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SAWBENCH_CACHE", str(tmp_path / "sawbench"))
    return tmp_path / "hub"


def qwen3_4b(**options: str) -> DictConfig:
    config = group_config("model", "qwen3-4b")
    for name, value in options.items():
        config[name] = value
    return config


def test_a_model_in_the_hubs_cache_loads_offline(cache: Path) -> None:
    write_hub_model(cache, HUB)
    plan = plan_model(qwen3_4b())
    assert has_weights(plan) is None
    assert plan.shape == KVShape(2, 4, 2, 32), "the configuration beside the weights is theirs, not the shipped one"
    loaded = load_model(plan, CPU, torch.float32)
    assert loaded.identity["name"] == "qwen3-4b"
    assert loaded.identity["source"] == HUB
    assert loaded.identity["revision"] == COMMIT
    assert loaded.eos_ids == (256, 258)
    assert loaded.tokenizer.decode(loaded.tokenizer("hub").input_ids) == "hub"


def test_sharded_weights_load(cache: Path) -> None:
    snapshot = write_hub_model(cache, HUB, shard_size="100KB")
    assert len(list(snapshot.glob("model-*.safetensors"))) > 1
    assert load_model(plan_model(qwen3_4b()), CPU, torch.float32).shape.layers == 2


def test_a_models_own_sampling_defaults_do_not_enter_unseen(cache: Path) -> None:
    snapshot = write_hub_model(cache, HUB)
    defaults = {"eos_token_id": [258, 7], "repetition_penalty": 1.1, "temperature": 0.6, "do_sample": True}
    (snapshot / "generation_config.json").write_text(json.dumps(defaults))
    loaded = load_model(plan_model(qwen3_4b()), CPU, torch.float32)
    assert loaded.eos_ids == (7, 256, 258)
    assert not loaded.model.generation_config.do_sample
    assert loaded.model.generation_config.repetition_penalty in (None, 1.0)


def test_weights_that_a_file_lacks_are_not_made_up(cache: Path) -> None:
    file = write_hub_model(cache, HUB) / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 .*model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(plan_model(qwen3_4b()), CPU, torch.float32)


def test_an_interrupted_download_is_missing_and_named(cache: Path) -> None:
    snapshot = write_hub_model(cache, HUB, shard_size="100KB")
    shard = sorted(snapshot.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(UserError, match=f"{shard.name} is missing; .*hf download {HUB}"):
        plan_model(qwen3_4b())


def test_a_revision_that_is_not_here_is_asked_for_by_name(cache: Path) -> None:
    write_hub_model(cache, HUB)
    with pytest.raises(UserError, match=f"hf download {HUB} --revision v2"):
        plan_model(qwen3_4b(revision="v2"))


def test_any_other_decoder_is_named_after_its_repository(cache: Path) -> None:
    write_hub_model(cache, "someone/Their-Llama", TINY_QWEN3 | {"model_type": "llama"})
    config = group_config("model", "smollm2-135m")
    config.hub = "someone/Their-Llama"
    plan = plan_model(config)
    assert plan.name == "their-llama"
    assert plan.hf_config.model_type == "llama"


def test_a_folder_is_its_weights_wherever_it_lies(cache: Path, tmp_path: Path) -> None:
    snapshot = write_hub_model(cache, HUB)
    plan = plan_model(qwen3_4b(path=str(snapshot)))
    moved = snapshot.rename(tmp_path / "elsewhere")
    again = plan_model(qwen3_4b(path=str(moved)))
    assert plan.identity["revision"] == again.identity["revision"]
    assert again.name == "elsewhere", "these are not the weights that qwen3-4b names"
    assert load_model(again, CPU, torch.float32).shape == plan.shape
    (moved / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.path=.*elsewhere has no model\.safetensors"):
        plan_model(qwen3_4b(path=str(moved)))


def test_other_weights_in_the_same_place_are_another_model(cache: Path) -> None:
    snapshot = write_hub_model(cache, HUB)
    plan = plan_model(qwen3_4b(path=str(snapshot)))
    weights = snapshot / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    assert plan_model(qwen3_4b(path=str(snapshot))).identity["revision"] != plan.identity["revision"]


def test_code_from_a_repository_is_not_run_unasked(cache: Path) -> None:
    snapshot = write_hub_model(cache, HUB)
    fields = json.loads((snapshot / "config.json").read_text())
    fields |= {
        "model_type": "theirs",
        "auto_map": {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"},
    }
    (snapshot / "config.json").write_text(json.dumps(fields))
    (snapshot / "theirs.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(UserError, match=r"model\.trust_remote_code=true"):
        plan_model(qwen3_4b())

"""GGUF files: converted once, loaded from the copy, and the default model's own file where it is at hand."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from models.shapes import CPU, tiny_model
from sawbench.config import group_config
from sawbench.core.errors import UserError
from sawbench.models import LoadedModel, load_model, plan_model
from sawbench.models import gguf as gguf_module
from sawbench.models.gguf import converted_folder
from sawbench.models.tokenizers import SPECIAL
from sawbench.models.wheel import fetched

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(file: Path, loaded: LoadedModel) -> None:
    """A Qwen2 model and a byte vocabulary as llama.cpp would write them, in float32."""
    config, writer = loaded.model.config, gguf.GGUFWriter(str(file), "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocab = loaded.tokenizer.get_vocab()
    tokens = [*sorted(vocab, key=vocab.__getitem__), "hu"]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(["h u"])
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_pad_token_id(vocab["<|endoftext|>"])
    for name, tensor in loaded.model.state_dict().items():
        writer.add_tensor(gguf_name(name), tensor.float().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return top.get(name, name.replace("lm_head", "output"))
    _, _, layer, *module, kind = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(module)]}.{kind}"


@pytest.fixture(scope="module")
def original() -> LoadedModel:
    return tiny_model("qwen2", head_dim=16, hidden_size=64)


@pytest.fixture
def file(tmp_path: Path, original: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAWBENCH_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", original)
    return tmp_path / "small.gguf"


def from_gguf(file: Path) -> DictConfig:
    config = group_config("model", "smollm2-135m")
    config.path = str(file)
    return config


def test_a_gguf_file_is_the_model_that_it_was_written_from(file: Path, original: LoadedModel) -> None:
    plan = plan_model(from_gguf(file))
    assert plan.name == "small"
    assert plan.shape == original.shape
    loaded = load_model(plan, CPU, torch.float32)
    ids = torch.tensor([[72, 101, 108, 111]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, original.model(ids).logits)
    assert loaded.facts.key_bias is not None
    assert loaded.tokenizer.chat_template is not None, "the file has none: ChatML is given to it"
    assert 258 in loaded.eos_ids


def test_the_second_load_converts_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_model(plan_model(from_gguf(file)), CPU, torch.float32)

    def fail(*args: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr("sawbench.models.gguf._convert", fail)
    second = load_model(plan_model(from_gguf(file)), CPU, torch.float32)
    assert second.identity == first.identity
    same = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_a_conversion_that_breaks_off_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(source: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")
        raise KeyboardInterrupt

    plan = plan_model(from_gguf(file))
    with monkeypatch.context() as patched:
        patched.setattr("sawbench.models.gguf._convert", break_off)
        with pytest.raises(KeyboardInterrupt):
            load_model(plan, CPU, torch.float32)
    assert not [path for path in converted_folder(file).parent.iterdir() if path.suffix != ".lock"]
    assert load_model(plan, CPU, torch.float32).shape == plan.shape


def test_of_several_that_convert_at_once_one_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of twelve runs wrote a copy of its own, and the disk was full before the first copy was whole."""
    targets: list[Path] = []
    truly = gguf_module._convert

    def noted(source: Path, target: Path) -> None:
        targets.append(target)
        truly(source, target)

    monkeypatch.setattr(gguf_module, "_convert", noted)
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(gguf_module.convert, [file] * 3))
    assert len(targets) == 1
    assert folders == {converted_folder(file)}


def test_a_disk_too_full_is_said_before_anything_is_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_model(from_gguf(file))
    needed = 4 * sum(tensor.n_elements for tensor in gguf.GGUFReader(file).tensors)
    usage = shutil.disk_usage(file.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    with pytest.raises(UserError, match=r"small\.gguf as float32 needs .* SAWBENCH_CACHE"):
        load_model(plan, CPU, torch.float32)
    assert not converted_folder(file).exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert load_model(plan, CPU, torch.float32).shape == plan.shape


def test_what_is_no_gguf_file_is_refused_before_weights_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAWBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"not at all")
    with pytest.raises(UserError, match=r"model\.path=.*broken\.gguf"):
        plan_model(from_gguf(tmp_path / "broken.gguf"))


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    if fetched(group_config("model", "smollm2-135m").fetch) is None:
        pytest.skip("the default model's weights are not here: python -m sawbench.models.fetch")
    return load_model(plan_model(group_config("model", "smollm2-135m")), CPU, torch.float32)


@pytest.mark.slow
def test_the_default_model_is_what_its_configuration_says(smollm2: LoadedModel) -> None:
    shipped = group_config("model", "smollm2-135m").config
    for key, value in shipped.items():
        found = getattr(smollm2.model.config, key)
        assert found == pytest.approx(value) if isinstance(value, float) else found == value, key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world 123\n  def f(x):  2", [19556, 905, 216, 33, 34, 35, 3805, 753, 275, 24, 104, 727, 256, 34]),
        ("<|im_start|>user\nDON'T<|im_end|>", [1, 4093, 198, 52, 2154, 23, 68, 2]),
    ],
)
def test_golden_token_ids_of_smollm2(smollm2: LoadedModel, text: str, ids: list[int]) -> None:
    assert smollm2.tokenizer(text).input_ids == ids
    assert smollm2.tokenizer.decode(ids) == text


@pytest.mark.slow
def test_the_default_models_chat_template_and_stop_ids(smollm2: LoadedModel) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    text = smollm2.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.eos_ids == (0, 2)
    assert smollm2.facts.key_bias is None

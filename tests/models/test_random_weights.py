"""``tiny`` and every other model with random weights: seeded, of any shape and precision, with a tokenizer."""

import pytest
import torch
from torch.profiler import profile

from models.shapes import CPU, tiny_model, tiny_plan
from sawbench.config import group_config
from sawbench.core.errors import UserError
from sawbench.models import choose_device, choose_dtype, load_model, plan_model
from sawbench.models.tokenizers import byte_tokenizer


def weights(seed: int) -> torch.Tensor:
    loaded = load_model(tiny_plan(seed=seed), CPU, torch.float32)
    return torch.cat([p.flatten() for p in loaded.model.parameters()])


def test_weights_are_their_seed() -> None:
    before = torch.get_rng_state()
    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are its own"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_precision_is_that_asked_for_and_frequencies_stay_single(dtype: torch.dtype) -> None:
    loaded = tiny_model(dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {dtype}
    assert loaded.model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.facts.key_bias is not None


@pytest.mark.parametrize("text", ["plain", "tabs\t\n  spaces ", "naïve — 日本語 🪚", "<|im_start|>user", ""])
def test_the_byte_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_chat_template_opens_the_answer() -> None:
    ids = byte_tokenizer().apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert byte_tokenizer().decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_tiny_model_stops_at_its_end_of_turn_and_knows_every_token() -> None:
    loaded = tiny_model()
    assert loaded.eos_ids == (258,)
    assert len(loaded.tokenizer) <= loaded.model.config.vocab_size


def test_a_named_shape_needs_no_hub() -> None:
    config = group_config("model", "qwen3-0.6b")
    config.weights, config.config.num_hidden_layers, config.config.vocab_size = "random", 1, 264
    loaded = load_model(plan_model(config), CPU, torch.float32)
    assert loaded.shape.head_dim == 128
    assert loaded.identity["weights"] == "random"


def test_devices_and_dtypes_are_chosen_by_name() -> None:
    assert choose_dtype("auto", CPU) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float64", CPU) == choose_dtype("fp64", CPU) == torch.float64
    assert choose_device("cpu") == CPU
    with pytest.raises(UserError, match=r"model.dtype=int4 is not one of: auto, fp32"):
        choose_dtype("int4", CPU)
    with pytest.raises(UserError, match="device=tpu is not one of: auto, cpu"):
        choose_device("tpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_meets_a_slice_of_the_tokens_in_one_product(dtype: torch.dtype) -> None:
    """As one product a row of the batch it would need as many copies of its weights."""
    model = tiny_model("qwen2", dtype=dtype).model
    vocabulary = model.config.vocab_size
    ids = torch.arange(4 * 7).view(4, 7)
    with torch.inference_mode(), profile(record_shapes=True) as seen:
        kept = model(input_ids=ids, logits_to_keep=3).logits
    products = [event.input_shapes for event in seen.events() or () if event.name in ("aten::mm", "aten::bmm")]
    assert [shapes[0] for shapes in products if shapes[1][-1] == vocabulary] == [[4 * 3, model.config.hidden_size]]
    torch.testing.assert_close(kept, model(input_ids=ids).logits[:, -3:])

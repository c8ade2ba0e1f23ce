"""A tiny decoder in float64, where rounding cannot flip a code, wrapped as the engines take it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from sawbench.core.shape import KVShape
from sawbench.methods.parts import ModelFacts
from sawbench_kernels.key_bias import Rotary

VOCAB = 128


class CharTokenizer:
    """Token i is chr(i)."""

    def decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        return "".join(chr(int(t)) for t in tokens)

    def batch_decode(self, rows: torch.Tensor, skip_special_tokens: bool = True) -> list[str]:
        return [self.decode(row) for row in rows]


@dataclass(frozen=True)
class TinyLoaded:
    """What ``sawbench.models.LoadedModel`` offers an engine."""

    model: nn.Module
    tokenizer: CharTokenizer
    facts: ModelFacts
    shape: KVShape
    max_length: int = 512
    eos_ids: tuple[int, ...] = (VOCAB - 1,)


def tiny(
    model_type: str = "qwen2",
    kv_heads: int = 2,
    dtype: torch.dtype = torch.float64,
    bias: float = 5.0,
    head_dim: int = 32,
) -> TinyLoaded:
    """Two layers, four query heads, weights wide enough that answers vary; Qwen2 keys get a bias."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=kv_heads,
        head_dim=head_dim, vocab_size=VOCAB, max_position_embeddings=1024, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
        for name, parameter in model.named_parameters():
            if name.endswith("k_proj.bias"):
                parameter.normal_(std=bias)
    shape = KVShape(2, 4, kv_heads, head_dim)
    half = torch.arange(head_dim // 2)
    frequencies = 10000.0 ** (-2 * half.double() / head_dim)
    rotary = Rotary(torch.stack((half, half + head_dim // 2), -1), frequencies, 1.0)
    biases = [
        p.detach().unflatten(0, (kv_heads, head_dim)) for n, p in model.named_parameters() if n.endswith("k_proj.bias")
    ]
    return TinyLoaded(
        model, CharTokenizer(), ModelFacts(f"tiny-{model_type}", shape, rotary, tuple(biases) or None), shape
    )


def prompts(*lengths: int, seed: int = 1) -> list[tuple[int, ...]]:
    """Random prompts without the end-of-text token."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, VOCAB - 1, (n,), generator=generator).tolist()) for n in lengths]

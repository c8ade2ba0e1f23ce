"""A tiny random model in the layout of the hub's cache, for tests with the hub switched off."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from sawbench.models.architecture import make_config
from sawbench.models.tokenizers import byte_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": 258,
    "pad_token_id": 256,
    "bos_token_id": None,
}


def write_hub_model(cache: Path, hub: str, fields: dict[str, Any] | None = None, shard_size: str = "5GB") -> Path:
    """Write model and tokenizer as ``hf download HUB`` would leave them below ``cache`` ($HF_HUB_CACHE).

    Returns the snapshot's folder, named after ``COMMIT``.
    """
    repository = cache / f"models--{hub.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(make_config(fields or TINY_QWEN3))
    model.save_pretrained(snapshot, max_shard_size=shard_size)
    byte_tokenizer().save_pretrained(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot

"""What a configuration says about attention, and which architectures are refused, by name and before weights load.

A quantized cache serves decoders in which every layer attends to every earlier token. Anything else is a refusal here
and not a failure at the first token.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape

FULL = "full_attention"


def make_config(fields: dict[str, Any]) -> Any:
    """The HF configuration of ``fields`` (``model_type`` and what config.json holds beside it).

    Raises:
        UserError: transformers does not know the model type, or refuses a value.
    """
    fields = dict(fields)
    model_type = fields.pop("model_type", None)
    try:
        return AutoConfig.for_model(model_type, **fields)
    except ValueError as error:
        raise UserError(f"model.config.model_type={model_type}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]


def kv_shape(config: Any) -> KVShape:
    """Layers and heads of a decoder's configuration (of its text part, where it has several)."""
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    return KVShape(
        layers=text.num_hidden_layers,
        query_heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
    )


def layer_kinds(config: Any) -> tuple[str, ...]:
    """How each layer attends: ``full_attention``, ``sliding_attention``, ``chunked_attention``, ..."""
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if kinds:
        return tuple(FULL if kind == "attention" else kind for kind in kinds)
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        return ("sliding_attention",) * text.num_hidden_layers
    if getattr(text, "attention_chunk_size", None):
        return ("chunked_attention",) * text.num_hidden_layers
    return (FULL,) * text.num_hidden_layers


def refuse_unservable(name: str, config: Any) -> None:
    """Raise UserError where a layer does not attend to every earlier token through plain keys and values."""
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"model={name}: encoder-decoder models are not served, only decoders")
    if getattr(text, "kv_lora_rank", None):
        raise UserError(f"model={name}: multi-head latent attention (MLA) caches a latent, not keys and values")
    if getattr(text, "add_cross_attention", False) or getattr(text, "cross_attention_layers", None):
        raise UserError(f"model={name}: cross-attention layers are not served")
    if getattr(text, "attn_logit_softcapping", None):
        raise UserError(f"model={name}: soft-capped attention logits are not served")
    _refuse_layers(name, layer_kinds(config))


def _refuse_layers(name: str, kinds: tuple[str, ...]) -> None:
    others = [(i, kind) for i, kind in enumerate(kinds) if kind != FULL]
    if others:
        layers = ", ".join(f"{i} {kind}" for i, kind in others[:4]) + (", ..." if len(others) > 4 else "")
        raise UserError(
            f"model={name}: {len(others)} of {len(kinds)} layers are not full attention ({layers}); "
            "only models with full attention in every layer are served"
        )


def skeleton(name: str, config: Any, trust_remote_code: bool = False) -> nn.Module:
    """The model on the meta device: every module, not one byte of weights.

    Raises:
        UserError: transformers has no causal language model for it, or one without the attention interface.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except ValueError as error:
        raise UserError(f"model={name}: {_first_line(error)}") from error
    if not getattr(model, "_supports_attention_backend", False):
        raise UserError(f"model={name}: {type(model).__name__} does not use transformers' attention interface")
    _refuse_layers(name, _built_kinds(model, kv_shape(config).layers))
    return model


def _built_kinds(model: nn.Module, layers: int) -> tuple[str, ...]:
    found = {module.layer_idx for module in attention_modules(model)}
    return tuple(FULL if i in found else "without attention" for i in range(layers))


def attention_modules(model: nn.Module) -> list[Any]:
    """The attention module of each layer, in order: what knows its layer and projects to an output."""
    return [m for m in model.modules() if isinstance(getattr(m, "layer_idx", None), int) and _is_attention(m)]


def _is_attention(module: nn.Module) -> bool:
    return hasattr(module, "scaling") and any(type(m).__name__ in ("Linear", "Conv1D") for m in module.children())

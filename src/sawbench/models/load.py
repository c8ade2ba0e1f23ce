"""Weights into memory, and what the loaded model says about itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from sawbench.core.errors import UserError, illegal
from sawbench.core.shape import KVShape
from sawbench.methods.parts import LayerSample, ModelFacts
from sawbench.models.architecture import attention_modules
from sawbench.models.capture import attention_shapes, capture
from sawbench.models.gguf import convert
from sawbench.models.hub import download
from sawbench.models.key_bias import learn_key_bias
from sawbench.models.plan import ModelPlan
from sawbench.models.tokenizers import byte_tokenizer, stop_ids

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. ``identity`` is what the record states; ``eos_ids`` end a completion, ascending."""

    model: Any
    tokenizer: Any
    facts: ModelFacts
    shape: KVShape
    identity: dict[str, Any]
    max_length: int
    eos_ids: tuple[int, ...]


def choose_device(name: str = "auto") -> torch.device:
    """``auto`` is the first CUDA device where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise illegal("device", name, ("auto", "cpu", "cuda", "cuda:N"))
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device={name}: this machine has no CUDA device; legal here: auto, cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The compute dtype called ``name``: auto, fp32, bf16, fp16, fp64, or torch's own names of them."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    known = DTYPES | {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
    if name not in known:
        raise illegal("model.dtype", name, ("auto", *known))
    return known[name]


def load_model(plan: ModelPlan, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The model of ``plan`` in eval mode on ``device``, with its tokenizer and its measured facts.

    Raises:
        UserError: the weights could not be had, or contradict what the plan says of heads.
    """
    if plan.source.kind == "random":
        model, tokenizer = _random(plan, device, dtype), byte_tokenizer()
    else:
        model, tokenizer = _pretrained(plan, _folder(plan), device, dtype)
    model.eval().requires_grad_(False)
    model.get_output_embeddings().register_forward_pre_hook(_whole)  # type: ignore[operator]
    _require_shape(plan, model)
    stops = stop_ids(tokenizer, model.generation_config, plan.eos)
    # A request says how it is decoded: a model's own defaults (a repetition penalty, say) must not enter unseen.
    model.generation_config = GenerationConfig(eos_token_id=list(stops), pad_token_id=tokenizer.pad_token_id)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        facts=learn_key_bias(plan.facts, model),
        shape=plan.shape,
        identity=plan.identity,
        max_length=plan.max_length,
        eos_ids=stops,
    )


def _require_shape(plan: ModelPlan, model: Any) -> None:
    """What the attention layers are really given must be what every check before was made for."""
    shape, found = plan.shape, attention_shapes(model)
    if found != [(shape.query_heads, shape.kv_heads, shape.head_dim)] * shape.layers:
        raise UserError(
            f"model={plan.name}: its {len(found)} attention layers have (query heads, KV heads, head size) "
            f"{sorted(set(found))}, its configuration says {shape}"
        )


def capture_layers(loaded: LoadedModel, tokens: Tensor) -> list[LayerSample]:
    """Post-RoPE q, k, v and W_o of every layer for ``tokens`` int64 [1, T], float32 on the CPU."""
    return capture(loaded.model, tokens)


def _whole(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Transformers hands the head a slice of the tokens [B, T, D]. With frozen weights PyTorch multiplies what is not
    contiguous row by row, on the CPU each with a copy of the weights of its own: 467 MB a row in bfloat16 for
    152k x 1,536."""
    return (inputs[0].contiguous(), *inputs[1:])


def _folder(plan: ModelPlan) -> Path:
    source = plan.source
    if source.missing:
        raise UserError(source.missing)
    if source.kind == "gguf" and source.path:
        return convert(source.path)
    return source.path or download(source.origin, source.revision)


def _pretrained(plan: ModelPlan, folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    code = plan.trust_remote_code
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        device_map={"": device},
        trust_remote_code=code,
        local_files_only=True,
        output_loading_info=True,
        **_precision(dtype),
    )
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise UserError(f"model={plan.name}: {folder} lacks {len(lacking)} of the model's weights, {lacking[0]} first")
    if plan.source.kind == "gguf":  # AutoTokenizer would build the architecture's own instead of what was converted
        return model, PreTrainedTokenizerFast.from_pretrained(folder)
    return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=code, local_files_only=True)


def _precision(dtype: torch.dtype) -> dict[str, Any]:
    """Loader options; the grouped matrix products of mixtures of experts do not know float64."""
    return {"dtype": dtype} | ({"experts_implementation": "eager"} if dtype == torch.float64 else {})


def _random(plan: ModelPlan, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Seeded weights as the architecture initialises them; attention biases, which would be zero, are drawn too."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), device:
        torch.manual_seed(plan.seed)
        model = AutoModelForCausalLM.from_config(plan.hf_config, **_precision(dtype))
        for attention in attention_modules(model):
            for name, parameter in attention.named_parameters():
                if name.endswith("bias"):
                    nn.init.normal_(parameter)
    return model

"""The bias of a model's keys, and whether ``R_j b`` can be split off them.

It can where a key is ``R_j (W x + b)`` and nothing else. What stands in the way is found by name on a model without
weights; on the loaded model the claim is measured: every attention layer is fed 0, x and 2 x.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sawbench.methods.parts import ModelFacts
from sawbench.models.architecture import attention_modules
from sawbench.models.capture import watching
from sawbench.models.rotary import find_rotary, position_dependent
from sawbench_kernels.key_bias import Rotary, rotated_bias

_POSITIONS = (0, 1, 2, 5, 11, 23, 47, 95)
_KEY_NORMS = ("k_norm", "k_layernorm", "key_layernorm", "key_norm", "qk_norm")
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_HALF_TOLERANCE = 3e-2


def bias_obstacle(skeleton: Any, rotary: Rotary | None) -> str | None:
    """Why the key-bias split does not hold, by name, or None. Keys without a bias have no obstacle.

    ``skeleton`` may be on the meta device: its configuration, modules and names are all that is looked at.
    """
    config = skeleton.config
    layers = attention_modules(skeleton)
    if not any(_has_key_bias(layer) for layer in layers):
        return None
    frequencies = position_dependent(config)
    if frequencies:
        return f"its rotary frequencies depend on the position (rope_type={frequencies})"
    if getattr(config, "clip_qkv", None):
        return f"keys are clipped between bias and RoPE (clip_qkv={config.clip_qkv})"
    if rotary is None:
        return "it has no rotary embedding that turns pairs of dimensions by position times frequency"
    return next((obstacle for layer in layers if (obstacle := _key_norm(layer))), None)


def _has_key_bias(attention: nn.Module) -> bool:
    """Whether a projection that makes keys (its own, or one fused with q and v) has a bias."""
    names = ("k_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "key")
    projections = (getattr(attention, name, None) for name in names)
    return any(getattr(projection, "bias", None) is not None for projection in projections)


def _key_norm(attention: Any) -> str | None:
    found = next((name for name in _KEY_NORMS if isinstance(getattr(attention, name, None), nn.Module)), None)
    return f"layer {attention.layer_idx} normalises keys between bias and RoPE ({found})" if found else None


def learn_key_bias(facts: ModelFacts, model: Any) -> ModelFacts:
    """``facts`` with the rotary embedding and the key bias of the loaded ``model``, or with the obstacle that measuring
    met: methods without the split still run."""
    facts = replace(facts, rotary=find_rotary(model, facts.shape.head_dim))
    if facts.bias_obstacle or facts.rotary is None:
        return facts
    try:
        return replace(facts, key_bias=measure_key_bias(model, facts.rotary))
    except SplitError as error:
        return replace(facts, bias_obstacle=str(error))


class SplitError(Exception):
    """Keys of a model are not ``R_j (W x + b)``, whatever their names say."""


def measure_key_bias(model: Any, rotary: Rotary) -> tuple[Tensor, ...] | None:
    """``b`` of each layer, float32 [H, D] on the CPU; None where every layer's is zero.

    Raises:
        SplitError: keys are not ``R_j (W x + b)`` with this rotary embedding.
    """
    zero = _keys(model, 0.0)
    if not any(key.any() for key in zero):
        return None
    biases = [key[0] / rotary.scaling for key in zero]
    tolerance = _TOLERANCE.get(model.dtype, _HALF_TOLERANCE)
    for layer, (b, k0, k1, k2) in enumerate(zip(biases, zero, _keys(model, 1.0), _keys(model, 2.0), strict=True)):
        turned = rotated_bias(b, rotary, torch.tensor(_POSITIONS))
        error = max((turned - k0).abs().max(), (k2 - k0 - 2 * (k1 - k0)).abs().max()) / k2.abs().max()
        if error > tolerance:
            raise SplitError(f"keys of layer {layer} differ from R_j (W x + b) by {float(error):.1e} of the largest")
    return tuple(b.float() for b in biases)


@torch.no_grad()
def _keys(model: Any, scale: float) -> list[Tensor]:
    """Post-RoPE keys [T, H, D] of each layer at ``_POSITIONS``, every layer's input being ``scale`` times one x."""
    keys: list[Tensor] = []
    wide = torch.promote_types(model.dtype, torch.float32)
    positions = torch.tensor([_POSITIONS], device=model.device)

    def keep(module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
        keys.append(key[0].transpose(0, 1).to("cpu", wide))

    with watching(model, keep), _fed(model, scale):
        model(input_ids=torch.zeros_like(positions), position_ids=positions, use_cache=False)
    return keys


@contextmanager
def _fed(model: Any, scale: float) -> Iterator[None]:
    """Every attention layer reads ``scale`` times the same seeded normal x instead of its hidden states."""
    hidden = model.config.get_text_config(decoder=True).hidden_size
    x = torch.randn(1, len(_POSITIONS), hidden, generator=torch.Generator().manual_seed(0))
    hook = _replace_input(scale * x)
    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in attention_modules(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replace_input(x: Tensor) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[0] if args else kwargs["hidden_states"]
        ours = x.to(given.device, given.dtype)
        return ((ours, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": ours})

    return hook

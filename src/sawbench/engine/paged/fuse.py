"""Fewer launches in a decode step: norms, rotary embedding and gated activations of a Hugging Face model, fused.

At batch 1 an 8B model's step is bound by its weights' bytes only if the small operations between the matrix products
do not outnumber them: a norm written out is six launches, the rotary embedding ten. Each replacement is the library's
own fused operation, or the module's own code compiled, and is checked against what it replaces before it stays.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 2e-2  # of bf16 outputs of size one


def fuse(model: nn.Module) -> list[str]:
    """Replace what can be replaced in ``model`` (in place, on CUDA); the names of what was."""
    fused = {type(m).__name__ for m in model.modules() if _fuse_norm(m)}
    fused |= {type(m).__name__ for m in model.modules() if _fuse_mlp(m)}
    return sorted(fused | _fuse_rotary(model))


def _fuse_norm(module: nn.Module) -> bool:
    """A root-mean-square norm ``w x / rms(x)``: torch's own kernel."""
    eps = getattr(module, "variance_epsilon", None)
    weight = getattr(module, "weight", None)
    if eps is None or weight is None or "RMSNorm" not in type(module).__name__:
        return False
    fused = partial(_rms_norm, weight=weight, eps=eps)
    return _replace(module, fused, torch.randn(3, len(weight), dtype=weight.dtype, device=weight.device))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return nn.functional.rms_norm(x, weight.shape, weight, eps)


def _fuse_mlp(module: Any) -> bool:
    """``down(silu(gate x) * up x)``: the product of activation and gate in one kernel."""
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
        return False
    if not isinstance(getattr(module, "act_fn", None), nn.SiLU) and type(module.act_fn).__name__ != "SiLUActivation":
        return False
    weight = module.gate_proj.weight
    x = torch.randn(3, weight.shape[1], dtype=weight.dtype, device=weight.device)
    return _replace(module, partial(_gated, module.gate_proj, module.up_proj, module.down_proj), x)


def _gated(gate: nn.Module, up: nn.Module, down: nn.Module, x: Tensor) -> Tensor:
    return down(_silu_times(gate(x), up(x)))


@torch.compile(dynamic=True)
def _silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


def _replace(module: nn.Module, fused: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Give ``module`` the fused forward if it agrees with its own on ``x``."""
    with torch.inference_mode():
        own, new = module(x), fused(x)
        if not torch.allclose(
            own.float(), new.float(), rtol=TOLERANCE, atol=TOLERANCE * float(own.float().abs().max())
        ):
            return False
    module.forward = fused
    return True


def _fuse_rotary(model: nn.Module) -> set[str]:
    """``apply_rotary_pos_emb`` of the modelling code, compiled: one or two launches in place of ten."""
    sources = {type(m).__module__ for m in model.modules() if hasattr(m, "layer_idx")}
    done = set()
    for source in sources:
        module: Any = sys.modules[source]
        function = getattr(module, "apply_rotary_pos_emb", None)
        if function is not None and not hasattr(function, "_sawbench_plain"):
            compiled = torch.compile(function, dynamic=True)
            compiled._sawbench_plain = function  # type: ignore[attr-defined]
            module.apply_rotary_pos_emb = compiled
        done |= {"apply_rotary_pos_emb"} if function is not None else set()
    return done

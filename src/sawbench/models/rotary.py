"""What a model says about its rotary embedding, found by turning unit vectors with the model's own function.

Pair order (half or interleaved), partial rotary and attention scaling differ between architectures and are written
down nowhere; measuring them leaves no table of model names to maintain.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sawbench_kernels.key_bias import Rotary, rotated_bias

_CHECKED = (0, 1, 2, 7, 31, 100)
_TOLERANCE = 1e-5
POSITION_DEPENDENT = ("dynamic", "longrope")
"""RoPE types of transformers whose frequencies change with the length of the sequence."""


def find_rotary(model: Any, head_dim: int) -> Rotary | None:
    """The rotary embedding of ``model``, or None where it has none that turns pairs of dimensions by ``j * inv_freq``.

    What is found agrees with the model's own rotation at several positions to 1e-5. ``model`` may be on the meta
    device: its rotary module is then built anew, which takes no weights.
    """
    embedding = next((m for m in model.modules() if isinstance(getattr(m, "inv_freq", None), Tensor)), None)
    if embedding is not None and embedding.inv_freq.is_meta:
        embedding = type(embedding)(model.config)
    turn = _own_rotation(model)
    if embedding is None or turn is None:
        return None
    rotary = _measure(embedding, turn, head_dim)
    return rotary if rotary is not None and _agrees(rotary, embedding, turn, head_dim) else None


def position_dependent(config: Any) -> str | None:
    """The RoPE type whose frequencies depend on the position, by name, or None."""
    parameters = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    rope_type = parameters.get("rope_type", "default")
    return rope_type if rope_type in POSITION_DEPENDENT else None


def _own_rotation(model: nn.Module) -> Callable[..., Any] | None:
    """``apply_rotary_pos_emb`` of the file that defines the model."""
    return getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None)


@torch.no_grad()
def _turned(x: Tensor, embedding: Any, turn: Callable[..., Any], position: int) -> Tensor:
    """float32 [N, D]: the rows of ``x`` [N, D] as the model turns them at ``position``."""
    heads = x.to(embedding.inv_freq.device, torch.float32)[None, :, None]
    cos, sin = embedding(heads, position_ids=torch.full((1, 1), position, device=heads.device))
    return turn(heads, heads, cos, sin)[1][0, :, 0].cpu()


def _measure(embedding: Any, turn: Callable[..., Any], head_dim: int) -> Rotary | None:
    """Pairs from where unit vectors go at position 1: dimension a sends +sin to its partner b."""
    images = _turned(torch.eye(head_dim), embedding, turn, 1)
    images.fill_diagonal_(0)
    pairs = (images > 0).nonzero()
    frequencies = embedding.inv_freq.detach().double().cpu()
    frequencies = frequencies[frequencies != 0]
    if len(pairs) != len(frequencies):
        return None
    return Rotary(pairs, frequencies, float(getattr(embedding, "attention_scaling", 1.0)))


def _agrees(rotary: Rotary, embedding: Any, turn: Callable[..., Any], head_dim: int) -> bool:
    x = torch.linspace(-1, 1, 3 * head_dim).sin().view(3, head_dim)
    ours = rotated_bias(x, rotary, torch.tensor(_CHECKED))
    theirs = torch.stack([_turned(x, embedding, turn, position) for position in _CHECKED])
    return bool((ours - theirs).abs().max() <= _TOLERANCE)

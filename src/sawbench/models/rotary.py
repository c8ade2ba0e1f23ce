"""What a model says about its rotary embedding, found by turning unit vectors with the model's own function.

Pair order (half or interleaved), partial rotary and attention scaling differ between architectures and are written
down nowhere; measuring them leaves no table of model names to maintain.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sawbench.models.architecture import attention_modules
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
    turn = _OwnRotation.of(model)
    rotary = turn and _measure(turn, head_dim)
    return rotary if rotary and turn and _agrees(rotary, turn, head_dim) else None


def position_dependent(config: Any) -> str | None:
    """The RoPE type whose frequencies depend on the position, by name, or None."""
    parameters = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    rope_type = parameters.get("rope_type", "default")
    return rope_type if rope_type in POSITION_DEPENDENT else None


@dataclass(frozen=True)
class _OwnRotation:
    """How the model itself turns a head: its rotary module, and ``apply_rotary_pos_emb`` of the file that defines it.

    ``width``: leading dimensions that attention hands to the function, where it keeps the rest to itself; None: all.
    """

    embedding: Any
    function: Callable[..., Any]
    width: int | None

    @classmethod
    def of(cls, model: Any) -> "_OwnRotation | None":
        embedding = next((m for m in model.modules() if isinstance(getattr(m, "inv_freq", None), Tensor)), None)
        function = getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None)
        if embedding is None or function is None:
            return None
        if embedding.inv_freq.is_meta:
            embedding = type(embedding)(model.config)
        return cls(embedding, function, getattr(attention_modules(model)[0], "rotary_ndims", None))

    @torch.no_grad()
    def __call__(self, x: Tensor, position: int) -> Tensor:
        """float32 [N, D]: the rows of ``x`` [N, D] as the model turns them at ``position``."""
        heads = x.to(self.embedding.inv_freq.device, torch.float32)[None, :, None]
        cos, sin = self.embedding(heads, position_ids=torch.full((1, 1), position, device=heads.device))
        handed, kept = heads.tensor_split([self.width or heads.shape[-1]], -1)
        turned = self.function(handed, handed, cos, sin)[1]
        return torch.cat((turned, kept), -1)[0, :, 0].cpu()


def _measure(turn: _OwnRotation, head_dim: int) -> Rotary | None:
    """Pairs from where unit vectors go at position 1: dimension a sends +sin to its partner b."""
    images = turn(torch.eye(head_dim), 1).fill_diagonal_(0)
    pairs = (images > 0).nonzero()
    frequencies = turn.embedding.inv_freq.detach().double().cpu()
    frequencies = frequencies[frequencies != 0]
    if len(pairs) != len(frequencies):
        return None
    return Rotary(pairs, frequencies, float(getattr(turn.embedding, "attention_scaling", 1.0)))


def _agrees(rotary: Rotary, turn: _OwnRotation, head_dim: int) -> bool:
    x = torch.linspace(-1, 1, 3 * head_dim).sin().view(3, head_dim)
    ours = rotated_bias(x, rotary, torch.tensor(_CHECKED))
    theirs = torch.stack([turn(x, position) for position in _CHECKED])
    return bool((ours - theirs).abs().max() <= _TOLERANCE)

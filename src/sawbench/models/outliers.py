"""A controlled collapse: outlier channels planted in the keys of a model without changing what it computes.

The rows of ``k_proj`` that make some rotary pairs are multiplied by a factor, and those of ``q_proj`` divided by it, in
every query head that reads the KV head. Whole pairs, so that the rotary embedding commutes with the scaling: q . k and
so the logits stay as they were, while the range that a quantizer must cover grows with the factor. Synthetic, and to
be labelled so: it shows the study's phenomenon on a model that does not have it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.models.architecture import attention_modules


@torch.no_grad()
def plant_outliers(model: nn.Module, shape: KVShape, pairs: Tensor, factor: float, count: int = 1) -> None:
    """Scale the ``count`` rotary pairs with the largest key weights of each KV head by ``factor``, in place.

    ``pairs`` int64 [R, 2] are the model's rotary pairs (Rotary.pairs).

    Raises:
        UserError: keys are normalised after their projection, which would undo the scaling.
    """
    for attention in attention_modules(model):
        if hasattr(attention, "k_norm"):
            raise UserError("outliers cannot be planted where keys are normalised after k_proj")
        key = attention.k_proj.weight.unflatten(0, (shape.kv_heads, shape.head_dim))
        energy = key.square().sum(-1)[:, pairs].sum(-1)
        for head, chosen in enumerate(energy.topk(count, -1).indices):
            _scale(attention, shape, head, pairs[chosen].flatten().tolist(), factor)


def _scale(attention: Any, shape: KVShape, head: int, dims: list[int], factor: float) -> None:
    readers = range(head * shape.group, (head + 1) * shape.group)
    for projection, heads, scale in ((attention.k_proj, [head], factor), (attention.q_proj, readers, 1 / factor)):
        rows = [h * shape.head_dim + d for h in heads for d in dims]
        for parameter in projection.parameters():
            parameter[rows] *= scale

"""The specification of paged decode: one query token a sequence over its pages, in plain PyTorch, any dtype."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sawbench_kernels.codec import decode
from sawbench_kernels.hadamard.naive import hadamard
from sawbench_kernels.key_bias import Rotary, rotated_bias
from sawbench_kernels.pages import PageLayout, gather, slots_of

Rotation = int | Tensor
"""Order of a block Hadamard (1: none), or an orthogonal matrix [D, D], or one for each KV head [H_kv, D, D]."""


@dataclass(frozen=True, eq=False)
class KeyBias:
    """The split-off part of the key bias, float [H_kv, D] (zero elsewhere), and how the model turns it by position."""

    bias: Tensor
    rotary: Rotary


@dataclass(frozen=True, eq=False)
class DecodeSpec:
    """What the pages of one layer hold, and so how a query must read them.

    Keys are stored as ``(K - R_j bias - centroid) key_rotation``, values as ``(V - mean - centroid) value_rotation``;
    each subtraction only where it is given. A static key mean needs nothing here: it moves all scores of a head alike.

    Attributes:
        scale: softmax scale.
        key_codebook, value_codebook: centroids float [H_kv, C, D], as K and V lie before rotation.
        value_mean: float [H_kv, D].
    """

    layout: PageLayout
    scale: float
    key_rotation: Rotation = 1
    value_rotation: Rotation = 1
    key_bias: KeyBias | None = None
    key_codebook: Tensor | None = None
    value_codebook: Tensor | None = None
    value_mean: Tensor | None = None


def rotate(x: Tensor, rotation: Rotation, inverse: bool = False) -> Tensor:
    """``x`` [..., H_kv, n, D] times the rotation, or its transpose."""
    if isinstance(rotation, int):
        return hadamard(x, rotation) if rotation > 1 else x
    matrix = rotation.to(x.dtype)
    return x @ (matrix.mT if inverse else matrix)


def paged_decode(
    q: Tensor,
    planes: Mapping[str, Tensor],
    block_table: Tensor,
    lengths: Tensor,
    spec: DecodeSpec,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Attention output [B, H_q, D] in ``dtype``, in which all arithmetic runs.

    Args:
        q: [B, H_q, D], after RoPE, unrotated; query heads of a KV head lie side by side.
        planes: :meth:`PageLayout.view` of one layer's pool.
        block_table: integer [B, pages]; entries beyond a sequence's length are not read.
        lengths: integer [B], tokens to attend to; a sequence of length 0 gives zeros.
    """
    rows = [_one(q[b].to(dtype), planes, block_table[b], int(lengths[b]), spec) for b in range(len(q))]
    return torch.stack(rows)


def _one(q: Tensor, planes: Mapping[str, Tensor], table: Tensor, length: int, spec: DecodeSpec) -> Tensor:
    if length == 0:
        return torch.zeros_like(q)
    layout = spec.layout
    grouped = q.unflatten(0, (layout.kv_heads, -1))  # [H, G, D]
    tokens = gather(planes, slots_of(table, length, layout.page_size))
    key = decode(tokens, "key", layout.key_bits, layout.head_dim, q.dtype).transpose(0, 1)  # [H, T, D]
    value = decode(tokens, "value", layout.value_bits, layout.head_dim, q.dtype).transpose(0, 1)
    scores = rotate(grouped, spec.key_rotation) @ key.mT
    if spec.key_bias is not None:
        positions = torch.arange(length, device=q.device)
        bias = rotated_bias(spec.key_bias.bias.to(q.device, q.dtype), spec.key_bias.rotary, positions)
        scores = scores + grouped @ bias.transpose(0, 1).mT
    if spec.key_codebook is not None:
        scores = scores + grouped @ _centroids(spec.key_codebook, tokens["key.index"], q.dtype).mT
    p = (scores * spec.scale).softmax(-1)
    out = rotate(p @ value, spec.value_rotation, inverse=True)
    if spec.value_codebook is not None:
        out = out + p @ _centroids(spec.value_codebook, tokens["value.index"], q.dtype)
    if spec.value_mean is not None:
        out = out + spec.value_mean.to(q.dtype)[:, None]
    return out.flatten(0, 1)


def _centroids(codebook: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Centroids [H, T, D] of tokens whose indices are ``index`` [T, books]."""
    heads, books = codebook.shape[0], index.shape[1]
    by_head = index.to(torch.int64).repeat_interleave(heads // books, 1).T  # [H, T]
    return codebook.to(dtype)[torch.arange(heads, device=index.device)[:, None], by_head]

"""Checked entry to the dequantize_pages kernel; :mod:`.naive` is the specification."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from sawbench_kernels.dequantize_pages.kernel import dequantize_kernel
from sawbench_kernels.launch import check_sides, tile, words
from sawbench_kernels.quantize_store.op import bias_table, prepare
from sawbench_kernels.quantize_store.spec import StoreSpec
from sawbench_kernels.registers import lanes_of


class DequantizePages:
    """dequantize_pages of one side of one layer by the Triton kernel; made once, called for every prefill chunk.

    What comes back is the model's own K or V: rotations are undone and offsets added back inside, in float32, so that
    a query meets it as it is. With ``low_dims`` int32 [H_kv, E] (-1: none) each vector is followed by E columns that
    hold what rounding to the output dtype left of those dimensions; a query that repeats them there sees twice the
    significant bits.

    Raises:
        ValueError: what ``spec`` asks for is nothing that the kernel does; the message names it.
    """

    def __init__(
        self,
        spec: StoreSpec,
        side: Literal["key", "value"],
        device: torch.device,
        positions: int = 131_072,
        low_dims: Tensor | None = None,
    ) -> None:
        check_sides(spec)
        layout = spec.layout
        self.spec, self.side = spec, side
        self.bits = layout.key_bits if side == "key" else layout.value_bits
        self.part = prepare(spec.key if side == "key" else spec.value, device)
        split = spec.key_bias if side == "key" else None
        self.bias = list(bias_table(split, positions, device)) if split is not None else []
        self.extra = 0 if low_dims is None else low_dims.shape[1]
        self.low = None if low_dims is None else _columns(low_dims, layout.head_dim).to(device)

    def __call__(
        self,
        planes: Mapping[str, Tensor],
        slots: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        factor: float = 1.0,
        heads: tuple[int, int] | None = None,
    ) -> Tensor:
        """``factor`` times the values at ``slots`` int64 [T], in ``dtype`` [T, h, D + E], of KV heads ``heads``.

        ``heads`` (first, end) defaults to all; in memory heads come first, so that each is one contiguous run.
        ``positions`` int64 [T]: for keys whose spec has a key bias.
        """
        if slots.dtype != torch.int64 or slots.dim() != 1 or not slots.is_contiguous():
            raise ValueError(f"slots must be contiguous int64 [T], not {slots.dtype} {tuple(slots.shape)}")
        if self.bias and positions is None:
            raise ValueError("keys with a split-off bias need their positions")
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ValueError(f"dtype {dtype} is not float16, bfloat16 or float32")
        first, end = heads or (0, self.spec.layout.kv_heads)
        side = self.side
        return dequantize_pages(
            planes[f"{side}.codes"], planes.get(f"{side}.pair"), planes.get(f"{side}.index"), slots,
            positions if self.bias else None, self.part.codebook, self.part.matrix, self.bias, self.low,
            self.bits, self.part.order, self.spec.layout.head_dim, self.extra, first, end, factor, dtype,
        )  # fmt: skip


def _columns(low_dims: Tensor, head_dim: int) -> Tensor:
    """int32 [H, D]: the extra column of each dimension, or -1."""
    columns = torch.full((len(low_dims), head_dim), -1, dtype=torch.int32)
    for head, dims in enumerate(low_dims.cpu()):
        kept = (dims >= 0).nonzero().squeeze(1)
        columns[head, dims[kept].to(torch.int64)] = kept.to(torch.int32)
    return columns


@torch.library.custom_op("sawbench::dequantize_pages", mutates_args=())
def dequantize_pages(
    codes: Tensor,
    pair: Tensor | None,
    plane: Tensor | None,
    slots: Tensor,
    positions: Tensor | None,
    codebook: Tensor | None,
    matrix: Tensor | None,
    bias: list[Tensor],
    low: Tensor | None,
    bits: int,
    order: int,
    dim: int,
    extra: int,
    first_head: int,
    end_head: int,
    factor: float,
    dtype: torch.dtype,
) -> Tensor:
    """The launch. ``codes``, ``pair``, ``plane`` (centroid indices): planes of one side; ``bias``: the tensors of
    BiasTable, or none; ``low``: int32 [H, D], the extra column of a dimension."""
    tokens, heads = len(slots), end_head - first_head
    out = torch.empty(heads, tokens, dim + extra, dtype=dtype, device=slots.device)
    if extra:
        out[..., dim:] = 0
    lanes = lanes_of(dim, dense=matrix is not None)
    warps, rows = tile(lanes, dense=matrix is not None)
    own, cross, column, cos, sin = bias or (None,) * 5
    pair = None if pair is None else words(pair)
    code_words = words(codes) if bits < 16 else codes
    if tokens:
        with torch.cuda.device_of(slots):
            dequantize_kernel[(-(-tokens // rows), heads)](
                code_words, pair, plane, slots, positions, codebook, matrix, own, cross, column, cos, sin, low, out,
                tokens, first_head, factor, code_words.stride(0), pair.stride(0) if pair is not None else 0,
                plane.stride(0) if plane is not None else 0,
                matrix.stride(0) if matrix is not None and matrix.dim() == 3 else 0, out.stride(1), out.stride(0),
                BITS=bits, ORDER=order, NORM=order**-0.5, H=codes.shape[1], PAGE=codes.shape[2],
                C=codebook.shape[1] if codebook is not None else 0, BOOKS=plane.shape[1] if plane is not None else 1,
                PAIRS=0 if cos is None else cos.shape[1], ROWS=rows, LANES=lanes, N=dim // lanes,
                num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip
    return out.transpose(0, 1)


@dequantize_pages.register_fake
def _(
    codes: Tensor,
    pair: Tensor | None,
    plane: Tensor | None,
    slots: Tensor,
    positions: Tensor | None,
    codebook: Tensor | None,
    matrix: Tensor | None,
    bias: list[Tensor],
    low: Tensor | None,
    bits: int,
    order: int,
    dim: int,
    extra: int,
    first_head: int,
    end_head: int,
    factor: float,
    dtype: torch.dtype,
) -> Tensor:
    shape = (end_head - first_head, slots.shape[0], dim + extra)
    return torch.empty(shape, dtype=dtype, device=slots.device).transpose(0, 1)

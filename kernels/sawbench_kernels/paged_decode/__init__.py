"""Decode attention of one query token a sequence over pages of a quantized KV cache.

``PagedDecode`` is made once for a layer and called every step; :mod:`.naive` is the specification.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sawbench_kernels.backend import interpreted
from sawbench_kernels.hadamard.naive import hadamard_matrix
from sawbench_kernels.paged_decode.naive import DecodeSpec, KeyBias, Rotation
from sawbench_kernels.paged_decode.op import MOST_SUMMED, decode, project
from sawbench_kernels.paged_decode.tables import FINE, bias_tables, halves, slice_signs
from sawbench_kernels.pages import PageLayout, index_dtype

__all__ = ["DecodeSpec", "KeyBias", "PagedDecode", "Rotation"]

MAX_GROUP = 16


class PagedDecode:
    """Paged decode by Triton kernels, for one layer.

    ``splits`` fixes the number of programs that share a KV head's work (0: as many as fill the device).

    Raises:
        ValueError: what ``spec`` asks for is nothing that the kernels do; the message names it.
    """

    def __init__(self, spec: DecodeSpec, device: torch.device, max_length: int = 131_072, splits: int = 0) -> None:
        layout = spec.layout
        self.spec, self.splits = spec, splits
        self.max_length = max_length
        self.gathers = layout.value_centroids > MOST_SUMMED
        self.wide = interpreted()  # its rounding to bf16 is wrong: torch does it
        self.key_order, self.key_matrix = _rotation(spec.key_rotation, layout.key_bits, layout.head_dim, device)
        self.value_order, self.value_matrix = _value_rotation(spec.value_rotation, layout.head_dim, device)
        self.signs = None
        if self.key_order > 1:
            self.signs = slice_signs(layout.key_bits, layout.head_dim, self.key_order)[0].to(device)
        self.bias: list[Tensor] = []
        if spec.key_bias is not None:
            t = bias_tables(spec.key_bias, max_length, device)
            self.bias = [t.dims, t.coefficients, t.pair, t.fine, t.coarse]
        self.key_codebook = _codebook(spec.key_codebook, layout.key_centroids, device, transposed=True)
        self.value_codebook = _codebook(spec.value_codebook, layout.value_centroids, device, transposed=False)
        self.shifts = (
            _shifts(layout, device) if spec.key_codebook is not None or spec.value_codebook is not None else None
        )
        self.numbers = _numbers(spec.value_codebook, device) if spec.value_codebook is not None else None
        self.value_mean = (
            spec.value_mean.to(device, torch.float32).contiguous() if spec.value_mean is not None else None
        )

    def __call__(self, q: Tensor, planes: Mapping[str, Tensor], block_table: Tensor, lengths: Tensor) -> Tensor:
        """Attention output [B, H_q, D] in q's dtype.

        Args:
            q: fp16 or bf16 [B, H_q, D], after RoPE, unrotated; its last axis is contiguous.
            planes: :meth:`PageLayout.view` of one layer's pool, on q's device.
            block_table: int32 [B, pages]. lengths: int32 [B], at most ``max_length``. Both are read by the device
                alone, so that a captured CUDA graph follows their contents.
        """
        layout = self.spec.layout
        _check(q, planes, block_table, lengths, self.spec)
        inner = (
            q if self.key_matrix is None else project(q, self.key_matrix, None, False, layout.kv_heads, torch.float32)
        )
        scores = (
            None
            if self.key_codebook is None
            else project(q, self.key_codebook, None, True, layout.kv_heads, torch.float32)
        )
        later = self.value_matrix is not None or self.value_codebook is not None or self.wide
        out, *sums = decode(
            inner,
            q,
            _words(planes["key.codes"]),
            _pairs(planes, "key"),
            _words(planes["value.codes"]),
            _pairs(planes, "value"),
            block_table,
            lengths,
            self.spec.scale,
            [layout.key_bits, layout.value_bits],
            [self.key_order, self.value_order],
            self.signs,
            self.bias,
            planes["key.index"] if self.key_codebook is not None else None,
            scores,
            planes["value.index"] if self.value_codebook is not None else None,
            self.shifts,
            self.numbers,
            layout.value_centroids if self.value_codebook is not None else 0,
            self.value_mean,
            later,
            self.splits,
        )
        last = torch.float32 if self.wide else q.dtype
        if self.value_matrix is not None:
            middle = last if self.value_codebook is None else torch.float32
            out = project(out, self.value_matrix, None, False, layout.kv_heads, middle)
        if self.value_codebook is not None and self.gathers:
            out = out + sums[0]
        elif self.value_codebook is not None:
            out = project(sums[0], self.value_codebook, out, False, layout.kv_heads, last)
        return out.to(q.dtype)


def _words(codes: Tensor) -> Tensor:
    """Packed bytes as 16-bit words; 16-bit values as they are."""
    return codes.view(torch.int16) if codes.dtype == torch.uint8 else codes


def _pairs(planes: Mapping[str, Tensor], side: str) -> Tensor | None:
    pair = planes.get(f"{side}.pair")
    return None if pair is None else pair.view(torch.int32).squeeze(-1)


def _dense(matrix: Tensor, device: torch.device) -> Tensor:
    """Halves bf16 [2, 1 or H_kv, D, D]."""
    return halves(matrix.to(device) if matrix.dim() == 3 else matrix.to(device)[None]).contiguous()


def _rotation(rotation: Rotation, bits: int, dim: int, device: torch.device) -> tuple[int, Tensor | None]:
    """(order of the Hadamard inside the kernel, or 1; matrix of a product before it, or None)."""
    if not isinstance(rotation, int):
        return 1, _dense(rotation, device)
    _check_order(rotation, dim)
    if rotation > 1 and dim & dim - 1:
        return 1, _dense(_block_hadamard(rotation, dim), device)
    return rotation, None


def _value_rotation(rotation: Rotation, dim: int, device: torch.device) -> tuple[int, Tensor | None]:
    """(order of the Hadamard inside the merge, or 1; transposed matrix of a product after it, or None)."""
    if isinstance(rotation, int):
        _check_order(rotation, dim)
        return rotation, None
    return 1, _dense(rotation.mT, device)


def _check_order(order: int, dim: int) -> None:
    legal = [1, *(h for h in (16, 32, 64, 128, 256) if dim % h == 0)]
    if order not in legal:
        raise ValueError(f"rotation order {order} for head_dim {dim} is not one of {legal}")


def _block_hadamard(order: int, dim: int) -> Tensor:
    return torch.block_diag(*[hadamard_matrix(order, torch.float64)] * (dim // order))


def _codebook(book: Tensor | None, centroids: int, device: torch.device, transposed: bool) -> Tensor | None:
    """Halves bf16 [2, H_kv, D, C] or [2, H_kv, C, D]."""
    if book is None:
        return None
    if book.shape[1] != centroids:
        raise ValueError(f"a codebook of {book.shape[1]} centroids for a layout of {centroids}")
    return halves((book.mT if transposed else book).to(device)).contiguous()


def _shifts(layout: PageLayout, device: torch.device) -> Tensor:
    """Bit int32 [2, FINE] where the index of a tile's token starts in its 32-bit word, in key and value indices."""
    bits = [8 * index_dtype(count or 1).itemsize for count in (layout.key_centroids, layout.value_centroids)]
    token = torch.arange(FINE, dtype=torch.int32, device=device)
    return torch.stack([b * (token % (32 // b)) for b in bits])


def _numbers(book: Tensor, device: torch.device) -> Tensor:
    """See :func:`.op.decode`: the numbers of few centroids, or many centroids themselves."""
    centroids = book.shape[1]
    if centroids > MOST_SUMMED:
        return book.to(device, torch.bfloat16).contiguous()
    return torch.arange(max(16, 1 << (centroids - 1).bit_length()), device=device).to(torch.float16)


def _check(q: Tensor, planes: Mapping[str, Tensor], table: Tensor, lengths: Tensor, spec: DecodeSpec) -> None:
    layout = spec.layout
    batch, heads, dim = q.shape
    group = heads // layout.kv_heads
    if dim != layout.head_dim or heads % layout.kv_heads or not 1 <= group <= MAX_GROUP:
        raise ValueError(f"q {tuple(q.shape)} does not fit {layout.kv_heads} KV heads of {layout.head_dim} (G 1..16)")
    if q.dtype not in (torch.float16, torch.bfloat16) or q.stride(-1) != 1:
        raise ValueError(f"q must be fp16 or bf16 with a contiguous last axis, not {q.dtype} with strides {q.stride()}")
    if table.dtype != torch.int32 or table.shape[0] != batch or table.stride(-1) != 1:
        raise ValueError(f"block_table must be int32 [{batch}, pages] with contiguous rows")
    if lengths.dtype != torch.int32 or tuple(lengths.shape) != (batch,) or not lengths.is_contiguous():
        raise ValueError(f"lengths must be contiguous int32 [{batch}]")
    for plane in layout.planes:
        tensor = planes[plane.name]
        if tensor.shape[1:] != plane.shape or tensor.dtype != plane.dtype or not tensor[0].is_contiguous():
            raise ValueError(f"{plane.name} must be {plane.dtype} [pages, {plane.shape}] with contiguous pages")
    devices = {t.device for t in (q, table, lengths, *planes.values())}
    if len(devices) > 1:
        raise ValueError(f"tensors lie on several devices: {sorted(map(str, devices))}")

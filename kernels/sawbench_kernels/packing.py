"""Unsigned integers of 2 to 8 bits to bytes and back, exactly.

Codes of 2 and 4 bits fill little-endian 16-bit words so that field i of word w is dimension ``i * D / F + w`` with
``F = 16 / bits`` fields: a kernel that loads D / F words gets F contiguous slices of the head by shifts alone, and
each slice meets the matching slice of the query in one matrix product. Other widths, and heads that do not divide,
store one bit plane after another.
"""

import torch
from torch import Tensor


def fields_per_word(bits: int, dim: int) -> int:
    """Fields of ``bits`` in a 16-bit word, or 0 where the bit-plane form is used."""
    return 16 // bits if bits in (2, 4) and dim % (16 // bits) == 0 else 0


def packed_bytes(bits: int, dim: int) -> int:
    """Bytes that hold ``dim`` codes of ``bits`` bits."""
    return dim * bits // 8 if bits == 8 or fields_per_word(bits, dim) else bits * -(-dim // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack ``codes`` uint8 [..., D] with values below ``2**bits`` into uint8 [..., packed_bytes(bits, D)]."""
    if bits == 8:
        return codes
    fields = fields_per_word(bits, codes.shape[-1])
    return _pack_words(codes, bits, fields) if fields else _pack_planes(codes, bits)


def unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Inverse of :func:`pack`: uint8 [..., dim]."""
    if bits == 8:
        return packed
    fields = fields_per_word(bits, dim)
    return _unpack_words(packed, bits, fields) if fields else _unpack_planes(packed, bits, dim)


def _pack_words(codes: Tensor, bits: int, fields: int) -> Tensor:
    slices = codes.to(torch.int32).unflatten(-1, (fields, -1))
    shifts = bits * torch.arange(fields, device=codes.device, dtype=torch.int32)
    words = (slices << shifts[:, None]).sum(-2, dtype=torch.int32)
    return torch.stack((words & 0xFF, words >> 8), -1).flatten(-2).to(torch.uint8)


def _unpack_words(packed: Tensor, bits: int, fields: int) -> Tensor:
    low, high = packed.unflatten(-1, (-1, 2)).to(torch.int32).unbind(-1)
    words = low | high << 8
    shifts = bits * torch.arange(fields, device=packed.device, dtype=torch.int32)
    return (words[..., None, :] >> shifts[:, None] & (1 << bits) - 1).flatten(-2).to(torch.uint8)


def _pack_planes(codes: Tensor, bits: int) -> Tensor:
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 8)).to(torch.int32)
    planes = padded[..., None, :] >> torch.arange(bits, device=codes.device, dtype=torch.int32)[:, None] & 1
    weights = 1 << torch.arange(8, device=codes.device, dtype=torch.int32)
    return (planes.unflatten(-1, (-1, 8)) * weights).sum(-1).flatten(-2).to(torch.uint8)


def _unpack_planes(packed: Tensor, bits: int, dim: int) -> Tensor:
    planes = packed.unflatten(-1, (bits, -1)).to(torch.int32)
    ones = planes[..., None] >> torch.arange(8, device=packed.device, dtype=torch.int32) & 1
    values = ones.flatten(-2)[..., :dim] << torch.arange(bits, device=packed.device, dtype=torch.int32)[:, None]
    return values.sum(-2).to(torch.uint8)

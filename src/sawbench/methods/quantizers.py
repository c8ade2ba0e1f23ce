"""Quantizers: a tensor to integers with a scale and a zero, those to bytes, and both ways back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from torch import Tensor

from sawbench.core.errors import illegal
from sawbench.methods.parts import ModelFacts, Planes, SideName, Site
from sawbench.methods.store import TokenStore
from sawbench_kernels.packing import pack, packed_bytes, unpack
from sawbench_kernels.quantize_store.naive import Affine, Storage, dequantize, quantize

if TYPE_CHECKING:
    from sawbench.methods.method import BoundSide

RAW_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
PAIR_BYTES = {"fp16": 4, "fp32": 8, "fp32_unrounded": 8}


class TokenByToken:
    """What quantizers share in which no token's bytes depend on another's."""

    span: ClassVar[int] = 1
    stepwise: ClassVar[bool] = False
    unservable: ClassVar[str] = ""

    def bind(self, site: Site) -> Self:
        return self

    def new_store(self, side: "BoundSide") -> TokenStore:
        return TokenStore(side)


@dataclass(frozen=True)
class Raw(TokenByToken):
    """No quantizer: the values in ``dtype``; ``compute`` keeps whatever the model computes in (the reference)."""

    dtype: Literal["bfloat16", "float16", "float32", "compute"] = "bfloat16"

    def check(self, facts: ModelFacts, side: SideName) -> None:
        if self.dtype != "compute" and self.dtype not in RAW_DTYPES:
            raise illegal("method.options.dtype", self.dtype, [*RAW_DTYPES, "compute"])

    def bytes_per_vector(self, head_dim: int) -> int:
        """Bytes of one head's vector (``compute`` counted as float32)."""
        return head_dim * (4 if self.dtype == "compute" else RAW_DTYPES[self.dtype].itemsize)

    def encode(self, x: Tensor) -> Planes:
        return {"raw": x if self.dtype == "compute" else x.to(RAW_DTYPES[self.dtype])}

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        return planes["raw"].to(dtype)


@dataclass(frozen=True)
class AffineInt(TokenByToken):
    """Asymmetric integers of ``bits`` bits, one scale and zero for each token, head and group of dimensions.

    ``group`` "head" spans the whole head, as the paper does; a number makes groups of that many neighbouring
    dimensions. ``storage``: fp16 (scale, min); fp32 (scale, zero) with the zero-point rounded, as the paper writes
    it; fp32_unrounded, as the authors' code has it.
    """

    bits: int = 4
    group: int | Literal["head"] = "head"
    storage: Storage = "fp16"

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError for an unknown width or storage, or a group that does not divide head_dim."""
        if self.bits not in range(2, 9):
            raise illegal("method.options.bits", self.bits, range(2, 9))
        if self.storage not in PAIR_BYTES:
            raise illegal("method.options.storage", self.storage, PAIR_BYTES)
        divisors = [g for g in range(2, facts.shape.head_dim + 1) if facts.shape.head_dim % g == 0]
        if self.group not in ("head", *divisors):
            raise illegal(f"{facts.name}: method.options.group", self.group, ["head", *divisors])

    def group_size(self, head_dim: int) -> int:
        return head_dim if self.group == "head" else self.group

    def bytes_per_vector(self, head_dim: int) -> int:
        """Bytes of one head's vector of one token: codes and pairs."""
        pairs = head_dim // self.group_size(head_dim) * PAIR_BYTES[self.storage]
        return packed_bytes(self.bits, head_dim) + pairs

    def encode(self, x: Tensor) -> Planes:
        """Planes ``codes`` uint8 [B, T, H, bytes] and ``pair`` [B, T, H, groups, 2] of x [B, T, H, D]."""
        affine = quantize(x, self.bits, self.group_size(x.shape[-1]), self.storage)
        return {"codes": pack(affine.codes, self.bits), "pair": torch.stack((affine.scale, affine.zero), -1)}

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        codes = unpack(planes["codes"], self.bits, head_dim)
        scale, zero = planes["pair"].unbind(-1)
        return dequantize(Affine(codes, scale, zero), self.storage, dtype)

"""Specializations of the dequantize kernel that are compiled ahead of time."""

from collections.abc import Mapping
from typing import Any

from sawbench_kernels.aot import Variant
from sawbench_kernels.dequantize_pages.kernel import dequantize_kernel
from sawbench_kernels.registers import lanes_of

_STRIDES = ("codes_page", "pair_page", "index_page", "matrix_head", "out_token", "out_head")
_TYPES = {
    "CODES": "*i32", "PAIR": "*i32", "SLOTS": "*i64", "OUT": "*fp16",
    "tokens": "i32", "first_head": "i32", "factor": "fp32", **dict.fromkeys(_STRIDES, "i32"),
}  # fmt: skip
_BIAS = {
    "OWN": "*fp32", "CROSS": "*fp32", "COLUMN": "*i32", "COS": "*fp32", "SIN": "*fp32", "POSITIONS": "*i64",
    "LOW": "*i32",
}  # fmt: skip


def _variant(
    name: str, bits: int = 4, order: int = 1, extra: Mapping[str, str] | None = None, warps: int = 1
) -> Variant:
    lanes = lanes_of(128, dense="MATRIX" in (extra or {}))
    constants: dict[str, Any] = {
        "BITS": bits, "ORDER": order, "NORM": order**-0.5, "H": 8, "PAGE": 128, "C": 0, "BOOKS": 1, "PAIRS": 64,
        "ROWS": 32 // lanes * warps, "LANES": lanes, "N": 128 // lanes,
    }  # fmt: skip
    types = {**_TYPES, **(extra or {})}
    return Variant(name, dequantize_kernel, types, constants, warps, _STRIDES, {"enable_fp_fusion": False})


AOT_VARIANTS = (
    _variant("dequantize int4"),
    _variant("dequantize kbias_bdr", order=128, extra=_BIAS),
    _variant("dequantize hessian", extra={"MATRIX": "*fp32"}, warps=4),
)

"""Specializations of the store kernel that are compiled ahead of time."""

from collections.abc import Mapping
from typing import Any

from sawbench_kernels.aot import Variant
from sawbench_kernels.quantize_store.kernel import store_kernel
from sawbench_kernels.quantize_store.op import takes_both
from sawbench_kernels.registers import lanes_of

_BASE = {
    "KEY": "*bf16", "VALUE": "*bf16", "SLOTS": "*i64", "OVERFLOW": "*i32", "tokens": "i32",
    "KEY_CODES": "*i32", "KEY_PAIR": "*i32", "VALUE_CODES": "*i32", "VALUE_PAIR": "*i32",
}  # fmt: skip
_STRIDES = dict.fromkeys(
    (
        "key_token", "key_head", "value_token", "value_head", "key_codes_page", "key_pair_page", "key_index_page",
        "value_codes_page", "value_pair_page", "value_index_page", "key_matrix_head", "value_matrix_head",
    ),
    "i32",
)  # fmt: skip
_BIAS = {"OWN": "*fp32", "CROSS": "*fp32", "COLUMN": "*i32", "COS": "*fp32", "SIN": "*fp32",
         "CHUNKS": "*i32", "POSITIONS": "*i64"}  # fmt: skip


def store_variant(
    name: str,
    dim: int = 128,
    bits: tuple[int, int] = (4, 4),
    orders: tuple[int, int] = (1, 1),
    extra: Mapping[str, str] | None = None,
    warps: int = 1,
) -> Variant:
    """A launch of the store kernel for many tokens, 8 KV heads and pages of 128 tokens, as op.py makes it."""
    lanes = lanes_of(dim, dense="KEY_MATRIX" in (extra or {}))
    constants: dict[str, Any] = {
        "KEY_BITS": bits[0], "VALUE_BITS": bits[1], "KEY_ORDER": orders[0], "VALUE_ORDER": orders[1],
        "KEY_NORM": orders[0] ** -0.5, "VALUE_NORM": orders[1] ** -0.5, "H": 8, "PAGE": 128, "KEY_C": 256, "VALUE_C": 0,
        "KEY_BOOKS": 1, "VALUE_BOOKS": 1, "PAIRS": dim // 2, "TOGETHER": takes_both(lanes, orders),
        "ROWS": 32 // lanes * warps, "LANES": lanes, "N": dim // lanes, "FAST": True,
    }  # fmt: skip
    types = {**_BASE, **_STRIDES, **(extra or {})}
    return Variant(name, store_kernel, types, constants, warps, tuple(_STRIDES), {"enable_fp_fusion": False})


AOT_VARIANTS = (
    store_variant("store int4"),
    store_variant("store bdr", orders=(128, 1)),
    store_variant("store bdr_kv, head 64", dim=64, orders=(64, 64)),
    store_variant("store bdr k8v4, head 96", dim=96, bits=(8, 4), orders=(32, 1)),
    store_variant("store bdr, head 256", dim=256, orders=(256, 1)),
    store_variant("store kbias_bdr", orders=(128, 1), extra=_BIAS),
    store_variant("store hessian", extra={"KEY_MATRIX": "*fp32"}, warps=4),
)

"""Specializations of the decode kernels that are compiled ahead of time, as the wrapper launches them."""

from typing import Any

from sawbench_kernels.aot import Variant
from sawbench_kernels.paged_decode.kernel import decode_kernel
from sawbench_kernels.paged_decode.merge import merge_kernel, project_kernel
from sawbench_kernels.paged_decode.op import LEAST_TILES, slice_span, tuning
from sawbench_kernels.paged_decode.tables import COARSE, FINE

_POINTERS = {
    "Q": "*bf16", "RAW": "*bf16", "SIGNS": "*bf16", "KEY_PAIR": "*i32", "VALUE_PAIR": "*i32", "TABLE": "*i32",
    "LENGTHS": "*i32", "PART": "*fp32", "LSE": "*fp32", "BIAS_DIMS": "*i32", "BIAS_COEFFICIENTS": "*fp32",
    "BIAS_PAIR": "*i32", "BIAS_FINE": "*bf16", "BIAS_COARSE": "*fp32", "KEY_INDEX": "*i32", "KEY_SCORES": "*fp32",
    "VALUE_INDEX": "*i32", "SHIFTS": "*i32", "NUMBERS": "*fp16", "PART_CENTROIDS": "*fp32",
}  # fmt: skip
_SCALARS = {"B": "i32", "scale": "fp32", "stride_table": "i32", "coarse_pairs": "i32"}
_STRIDES = tuple(f"stride_{name}" for name in (
    "q", "q_head", "raw", "raw_head", "key", "key_pair", "value", "value_pair", "key_index", "value_index",
))  # fmt: skip


def _decode(
    name: str,
    bits: tuple[int, int] = (4, 4),
    dim: int = 128,
    order: int = 1,
    rows: int = 0,
    centroids: int = 0,
) -> Variant:
    tuned = tuning(bits[0], bits[1], dim, 8, rows, centroids)
    planes = {n: "*i16" if b < 16 else "*bf16" for n, b in zip(("KEY", "VALUE"), bits, strict=True)}
    types = {**_POINTERS, **planes, **_SCALARS, **dict.fromkeys(_STRIDES, "i32")}
    constants: dict[str, Any] = {
        "H": 8, "G": 4, "D": dim, "PAGE": 128, "KB": bits[0], "VB": bits[1], "ORDER": order,
        "SPAN": slice_span(bits[0], dim, order), "R2": rows, "CK": centroids, "CV": centroids, "KEY_BOOKS": 1,
        "VALUE_BOOKS": 1, "KEY_INDEX_BITS": 8, "VALUE_INDEX_BITS": 8, "GATHERS": False,
        "TILE": tuned.tile, "NC": 8, "STAGES": tuned.stages,
        "LEAST": LEAST_TILES, "COARSE": COARSE, "FINE": FINE, "FAST": True, "WIDE": False, "WAITS": False,
    }  # fmt: skip
    return Variant(f"decode {name}", decode_kernel, types, constants, tuned.warps, _STRIDES)


def _merge(order: int) -> Variant:
    types = {"PART": "*fp32", "LSE": "*fp32", "LENGTHS": "*i32", "MEAN": "*fp32", "OUT": "*bf16",
             "B": "i32", "programs": "i32"}  # fmt: skip
    constants = {"H": 8, "G": 4, "D": 128, "DP": 128, "ORDER": order, "MEANS": False, "TILE": 64,
                 "LEAST": LEAST_TILES, "SEGMENTS": 16}  # fmt: skip
    return Variant(f"merge {order}", merge_kernel, types, constants, 2)


def _project() -> Variant:
    types = {"X": "*bf16", "MATRIX": "*bf16", "ADD": "*bf16", "OUT": "*fp32", "rows": "i32"}
    strides = ("x", "x_head", "add", "add_head", "out", "out_kv", "out_head", "low", "matrix")
    types |= {f"stride_{name}": "i32" for name in strides}
    constants = {"stride_out_n": 1, "G": 4, "K": 128, "N": 128, "ADDS": False, "SPLIT": False, "BM": 64, "BK": 128,
                 "BN": 64, "WIDE": False, "LAUNCHES": False}  # fmt: skip
    return Variant("project", project_kernel, types, constants, 4, tuple(f"stride_{name}" for name in strides))


AOT_VARIANTS = (
    _decode("int4"),
    _decode("bdr", order=128),
    _decode("kbias_bdr of 8 pairs", order=128, rows=16),
    _decode("kbias_bdr of all pairs", order=128, rows=128),
    _decode("kmeans 256", centroids=256),
    _decode("k8v4", bits=(8, 4)),
    _decode("int8", bits=(8, 8)),
    _decode("bf16", bits=(16, 16)),
    _merge(128),
    _project(),
)

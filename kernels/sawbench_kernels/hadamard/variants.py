"""Specializations of the Hadamard kernel that are compiled ahead of time."""

from sawbench_kernels.aot import Variant
from sawbench_kernels.hadamard.kernel import hadamard_kernel

_TYPES = {"X": "*bf16", "OUT": "*bf16", "rows": "i32", "heads": "i32", "x_row": "i32", "x_head": "i32"}
_CONSTANTS = {"ROWS": 16, "LANES": 2, "N": 64, "ORDER": 128, "NORM": 128**-0.5}

AOT_VARIANTS = (
    Variant("hadamard", hadamard_kernel, _TYPES, _CONSTANTS, 1, ("x_row", "x_head"), {"enable_fp_fusion": False}),
)

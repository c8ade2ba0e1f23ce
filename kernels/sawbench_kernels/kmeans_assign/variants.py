"""Specializations of the nearest-centroid kernel that are compiled ahead of time."""

from sawbench_kernels.aot import Variant
from sawbench_kernels.kmeans_assign.kernel import assign_kernel

_TYPES = {
    "X": "*bf16", "CENTROIDS": "*fp32", "HALF_NORM": "*fp32", "BEST": "*fp32", "INDEX": "*i64",
    "tokens": "i32", "x_token": "i32",
}  # fmt: skip
_CONSTANTS = {"E": 1024, "C": 256, "BOOKS": 1, "ROWS": 64, "BLOCK": 64, "DEPTH": 32}

AOT_VARIANTS = (Variant("kmeans assign", assign_kernel, _TYPES, _CONSTANTS, 4, ("x_token",)),)

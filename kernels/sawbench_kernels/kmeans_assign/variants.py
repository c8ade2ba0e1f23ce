"""Specializations of the nearest-centroid kernels that are compiled ahead of time."""

from sawbench_kernels.aot import Variant
from sawbench_kernels.kmeans_assign.kernel import nearest_kernel, products_kernel

_OUT = {"PRODUCTS": "*fp32", "tokens": "i32"}
_PRODUCTS = {"X": "*bf16", "CENTROIDS": "*fp32", "x_token": "i32", **_OUT}
_NEAREST = {"HALF_NORM": "*fp32", "INDEX": "*i64", **_OUT}
_BOOKS = {"C": 256, "BOOKS": 1}

AOT_VARIANTS = (
    Variant(
        "kmeans products", products_kernel, _PRODUCTS,
        {**_BOOKS, "E": 1024, "PART": 1024, "ROWS": 64, "BLOCK": 64, "DEPTH": 32}, 4, ("x_token",),
    ),
    Variant("kmeans nearest", nearest_kernel, _NEAREST, {**_BOOKS, "PARTS": 8, "ROWS": 1, "WIDE": 256}, 4),
)  # fmt: skip

"""Specializations of the merge of attention runs that are compiled ahead of time."""

from sawbench_kernels.aot import Variant
from sawbench_kernels.paged_prefill.kernel import merge_kernel

_STRIDES = (*(f"{name}{i}" for i in range(3) for name in ("token", "head", "sum")), "out_token", "out_head")
_DIVISIBLE = tuple(name for name in _STRIDES if not name.startswith("sum"))
_TYPES: dict[str, str] = {
    **{f"PART{i}": "*fp16" for i in range(3)}, **{f"SUM{i}": "*fp32" for i in range(3)}, "OUT": "*bf16",
    "tokens": "i32", "factor": "fp32", **dict.fromkeys(_STRIDES, "i32"),
}  # fmt: skip

AOT_VARIANTS = (Variant("prefill merge", merge_kernel, _TYPES, {"D": 128, "ROWS": 16}, 4, _DIVISIBLE),)

"""Specializations of the merge of attention runs that are compiled ahead of time."""

from sawbench_kernels.aot import Variant
from sawbench_kernels.paged_prefill.kernel import merge_kernel

_INTEGERS = ("i32", "i32", "i32")
_STRIDES = ("part_token", "part_head", "sum_head", "out_token", "out_head")
_TYPES: dict[str, str | tuple[str, ...]] = {
    "PARTS": ("*fp16", "*fp16", "*fp16"), "SUMS": ("*fp32", "*fp32", "*fp32"), "OUT": "*bf16",
    "tokens": "i32", "factor": "fp32", "part_token": _INTEGERS, "part_head": _INTEGERS, "sum_head": _INTEGERS,
    "out_token": "i32", "out_head": "i32",
}  # fmt: skip

AOT_VARIANTS = (Variant("prefill merge", merge_kernel, _TYPES, {"COUNT": 3, "D": 128, "ROWS": 16}, 4, _STRIDES),)

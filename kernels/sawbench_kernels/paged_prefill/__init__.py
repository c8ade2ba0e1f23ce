"""Causal attention of prompt chunks over the quantized pages of their sequences."""

from sawbench_kernels.paged_prefill.op import PagedPrefill, PrefillPlan, plan_prefill

__all__ = ["PagedPrefill", "PrefillPlan", "plan_prefill"]

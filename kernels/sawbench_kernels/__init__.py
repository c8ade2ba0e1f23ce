"""Triton kernels over pages of a quantized KV cache; each op is a folder with its specification beside its kernel."""

"""Triton kernels over pages of a quantized KV cache; each op is a folder with naive.py (the specification) and kernel.py."""

"""What does a low-bit KV cache really cost, and which one should I serve?"""

__version__ = "0.1.0"

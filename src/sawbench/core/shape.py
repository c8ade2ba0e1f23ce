"""The shape of a model's KV cache."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KVShape:
    """Layers, query heads, KV heads and head size of a decoder with full attention in every layer."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share one KV head (G)."""
        return self.query_heads // self.kv_heads

    @property
    def values_per_token(self) -> int:
        """K and V values that one token leaves in the cache, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

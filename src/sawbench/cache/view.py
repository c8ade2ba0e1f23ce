"""What a cache hands to attention: stored bytes of one layer, and how to read them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sawbench.methods.method import BoundLayer
from sawbench.methods.store import SideStore


@dataclass(frozen=True)
class LayerView:
    """One layer's cache as it stands after the current chunk was written.

    ``positions`` int [B, S] of the stored tokens. ``exact`` holds the current chunk's unquantized (key, value), each
    [B, T, H, D], where attention is to read them instead (``prefill=exact``). ``observe`` is called with (query, mask,
    scaling, output) where errors are being measured.
    """

    layer: BoundLayer
    key: SideStore
    value: SideStore
    positions: Tensor
    exact: tuple[Tensor, Tensor] | None = None
    observe: Callable[..., None] | None = None

"""What one side of one layer holds for a batch of rows: bytes, exactly as many as are allocated.

Rows share their number of slots; shorter ones are padded on the left. Stored bytes are never encoded again: operations
on rows move them as they are, so that any of them equals the same operation on an unquantized copy (and
encode(decode(x)) never compounds an error), or it raises.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from sawbench.methods.parts import Planes

if TYPE_CHECKING:
    from sawbench.methods.method import BoundSide

Padding = Callable[[], Sequence[int]]
"""Padding slots at the left of each row; a call may wait for the device."""


def unpadded() -> Sequence[int]:
    """Every slot of every row is a token."""
    return ()


class SideStore(Protocol):
    """K or V of one layer, B rows of ``tokens`` slots (padding included)."""

    @property
    def tokens(self) -> int: ...

    def append(self, x: Tensor, positions: Tensor, padding: Padding = unpadded) -> None:
        """Write x [B, T, H, D] at ``positions`` [B, T] behind what is there; ``padding`` counts all slots so far, x's
        included."""
        ...

    def values(self, dtype: torch.dtype) -> Tensor:
        """What is stored, [B, S, H, D] in the transformed space and without the offset; padding is any finite value."""
        ...

    def offset(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What to add in the space of x, broadcastable to [B, S, H, D], for tokens at ``positions`` [B, S]."""
        ...

    def check_drop(self, tokens: int) -> None:
        """Raises ValueError where the last ``tokens`` tokens cannot be forgotten exactly."""
        ...

    def drop_last(self, tokens: int) -> None:
        """Forget the last ``tokens`` tokens of every row; the memory goes too."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` (indices, repeats allowed) in that order."""
        ...

    def repeat(self, times: int) -> None:
        """Each row ``times`` times, next to each other."""
        ...

    def clear(self) -> None: ...

    def bytes(self) -> dict[str, int]:
        """Bytes of each plane's own allocation."""
        ...


@dataclass
class PlaneStore:
    """Named planes [B, T, ...] that grow along T together; exactly as large as what they hold."""

    planes: Planes = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return next(iter(self.planes.values())).shape[1] if self.planes else 0

    def append(self, new: Planes) -> None:
        """Add tokens [B, T_new, ...] behind those that are there."""
        if self.planes:
            new = {name: torch.cat((plane, new[name]), 1) for name, plane in self.planes.items()}
        self.planes = {name: plane.contiguous() for name, plane in new.items()}

    def drop_last(self, tokens: int) -> None:
        self._map(lambda plane: plane[:, : plane.shape[1] - tokens].clone())

    def select(self, rows: Tensor) -> None:
        self._map(lambda plane: plane[rows.to(plane.device)])

    def repeat(self, times: int) -> None:
        self._map(lambda plane: plane.repeat_interleave(times, 0))

    def clear(self) -> None:
        self.planes = {}

    def bytes(self) -> dict[str, int]:
        return {name: plane.untyped_storage().nbytes() for name, plane in self.planes.items()}

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        self.planes = {name: change(plane) for name, plane in self.planes.items()}


class TokenStore:
    """The store of every method whose tokens become bytes one by one: planes by token, padding encoded too."""

    def __init__(self, side: "BoundSide", planes: Planes | None = None) -> None:
        self.side, self.held = side, PlaneStore(planes or {})
        self.drop_last, self.select, self.repeat = self.held.drop_last, self.held.select, self.held.repeat
        self.clear, self.bytes = self.held.clear, self.held.bytes

    @property
    def tokens(self) -> int:
        return self.held.tokens

    def append(self, x: Tensor, positions: Tensor, padding: Padding = unpadded) -> None:
        self.held.append(self.side.encode(x, positions))

    def check_drop(self, tokens: int) -> None:
        """Any number can be forgotten: no token's bytes depend on another's."""

    def values(self, dtype: torch.dtype) -> Tensor:
        return self.side.stored(self.held.planes, dtype)

    def offset(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        return self.side.offset.value(self.held.planes, positions, dtype)

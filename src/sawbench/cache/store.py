"""Byte planes of one layer for a batch of rows: what a quantized cache really allocates.

Every plane is [B, T, ...]; rows share T, and left padding is the caller's business (a mask). Stored bytes are never
encoded again: all operations move them as they are, so that any of them equals the same operation on an unquantized
copy (and encode(decode(x)) never compounds an error).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sawbench.methods.parts import Planes


@dataclass
class PlaneStore:
    """Named planes that grow along T together; exactly as large as what they hold."""

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
        """Forget the last ``tokens`` tokens of every row; the memory goes too."""
        self._map(lambda plane: plane[:, : plane.shape[1] - tokens].clone())

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` (indices, repeats allowed) in that order."""
        self._map(lambda plane: plane[rows.to(plane.device)])

    def repeat(self, times: int) -> None:
        """Each row ``times`` times, next to each other."""
        self._map(lambda plane: plane.repeat_interleave(times, 0))

    def clear(self) -> None:
        self.planes = {}

    def bytes(self) -> dict[str, int]:
        """Bytes of each plane's own allocation."""
        return {name: plane.untyped_storage().nbytes() for name, plane in self.planes.items()}

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        self.planes = {name: change(plane) for name, plane in self.planes.items()}

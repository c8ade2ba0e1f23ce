"""Windows: the first and the newest tokens of a row stay in 16 bits, the ones between are quantized as they leave.

What a token becomes then depends on how far the row has gone, and what a prompt's tokens see on its chunks: engines
replay answers of such methods token by token. Rows are laid out by their own tokens, without padding, so that a row of
a padded batch is quantized in the groups of that row alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from sawbench.core.errors import UserError
from sawbench.methods.parts import ModelFacts, Planes, SideName, Site
from sawbench.methods.quantizers import Raw
from sawbench.methods.store import Padding, PlaneStore, unpadded

if TYPE_CHECKING:
    from sawbench.methods.method import BoundSide


@dataclass(frozen=True)
class Windowed:
    """``codec`` for the tokens that left the window, ``drain`` at a time (a multiple of the codec's ``span``).

    The first ``sink`` and at least the newest ``keep`` tokens of a row are held in ``dtype``, and between ``keep`` and
    ``keep + drain - 1`` of the newest in all. Values are rounded to ``dtype`` when they come, and quantized from there:
    any chunking leaves the same bytes.
    """

    codec: Any
    drain: int
    keep: int = 0
    sink: int = 0
    dtype: Literal["bfloat16", "float16", "float32", "compute"] = "bfloat16"

    stepwise: ClassVar[bool] = True

    @property
    def span(self) -> int:
        return int(self.codec.span)

    @property
    def unservable(self) -> str:
        window = (
            f"tokens wait in a 16-bit window, which drains {self.drain} at a time, beside the quantized ones: "
            "mixed buffers, no uniform pages"
        )
        return f"{window}; {self.codec.unservable}" if self.codec.unservable else window

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError for a drain that splits the codec's groups, and whatever the codec refuses."""
        self.codec.check(facts, side)
        Raw(self.dtype).check(facts, side)
        if self.drain < 1 or self.drain % self.span or min(self.keep, self.sink) < 0:
            raise UserError(
                f"a window that drains {self.drain} tokens at a time (method.options: residual or page) must drain "
                f"whole groups of {self.span}, and keep no fewer than 0"
            )

    def bind(self, site: Site) -> "Windowed":
        return self

    def new_store(self, side: "BoundSide") -> "WindowStore":
        return WindowStore(side, self)

    def drained(self, tokens: int) -> int:
        """How many of a row's ``tokens`` have left the window."""
        return max(0, tokens - self.sink - self.keep) // self.drain * self.drain

    def bytes_per_vector(self, head_dim: int) -> float:
        return float(self.codec.bytes_per_vector(head_dim))

    def encode(self, x: Tensor) -> Planes:
        """Whole groups x [B, T, H, D] as they are stored once they left the window."""
        planes: Planes = self.codec.encode(x)
        return planes

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        values: Tensor = self.codec.decode(planes, head_dim, dtype)
        return values


@dataclass
class WindowStore:
    """One side of one layer under a ``Windowed`` quantizer.

    ``held`` [B, W, H, D] are each row's sinks and window, ``packed`` [B, T / span, ...] what drained between them, both
    from the left and with unused room behind the shorter rows; ``described`` are the offset's planes, by slot.
    """

    side: "BoundSide"
    window: Windowed
    held: PlaneStore = field(default_factory=PlaneStore)
    packed: PlaneStore = field(default_factory=PlaneStore)
    described: PlaneStore = field(default_factory=PlaneStore)
    tokens: int = 0
    lengths: list[int] = field(default_factory=list)
    """Tokens of each row, padding left out."""

    def append(self, x: Tensor, positions: Tensor, padding: Padding = unpadded) -> None:
        self.tokens += x.shape[1]
        pads = padding() or [0] * len(x)
        before = self.lengths or [0] * len(x)
        self.lengths = [max(0, self.tokens - pad) for pad in pads]
        planes = self.side.offset.describe(x)
        self.described.append(planes)
        new = Raw(self.window.dtype).encode(self.side.reduced(x, planes, positions))["raw"]
        self._hold(new, before)
        self._drain(before)

    def _hold(self, new: Tensor, before: Sequence[int]) -> None:
        """The new tokens [B, T, H, D], of which the last of each row are no padding, behind those in the window."""
        counts = [now - then for now, then in zip(self.lengths, before, strict=True)]
        starts = [new.shape[1] - count for count in counts]
        held = [length - self.window.drained(length) for length in before]
        old = self.held.planes.get("window", new[:, :0])
        self.held.planes = {"window": joined(old, held, new, starts, counts)}

    def _drain(self, before: Sequence[int]) -> None:
        """Quantize the tokens behind the sinks that must leave."""
        gone = [self.window.drained(length) for length in before]
        leaving = [self.window.drained(now) - then for now, then in zip(self.lengths, gone, strict=True)]
        if not any(leaving):
            return
        window, sink, span = self.held.planes["window"], self.window.sink, self.window.span
        groups = self.window.encode(window[:, sink : sink + max(leaving)])
        units = [count // span for count in gone], [count // span for count in leaving]
        old = self.packed.planes or {name: plane[:, :0] for name, plane in groups.items()}
        first = [0] * len(leaving)
        self.packed.planes = {
            name: joined(old[name], units[0], plane, first, units[1]) for name, plane in groups.items()
        }
        kept = [length - self.window.drained(length) for length in self.lengths]
        at = torch.arange(max(kept))
        self.held.planes = {"window": gathered(window, torch.where(at < sink, at, at + column(leaving)))}

    def values(self, dtype: torch.dtype) -> Tensor:
        """Sinks, drained groups and window in order, each row's behind its padding."""
        window, sink = self.held.planes["window"], self.window.sink
        stored = [window.to(dtype)]
        if self.packed.planes:
            stored.append(self.window.decode(self.packed.planes, window.shape[-1], dtype))
        together = torch.cat(stored, 1)
        if not together.shape[1]:  # nothing but padding so far
            return window.new_zeros(len(window), self.tokens, *window.shape[2:], dtype=dtype)
        gone = column([self.window.drained(length) for length in self.lengths])
        own = torch.arange(self.tokens) - (self.tokens - column(self.lengths))
        in_groups = torch.where(own < sink + gone, own - sink + window.shape[1], own - gone)
        return gathered(together, torch.where(own < sink, own, in_groups))

    def offset(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        return self.side.offset.value(self.described.planes, positions, dtype)

    def check_drop(self, tokens: int) -> None:
        for length in self.lengths:
            if self.window.drained(max(0, length - tokens)) != self.window.drained(length):
                raise ValueError(
                    f"the last {tokens} tokens of a row of {length} cannot be forgotten: what left the window was "
                    f"quantized {self.window.drain} tokens at a time, and its exact values are gone"
                )

    def drop_last(self, tokens: int) -> None:
        self.check_drop(tokens)
        self.tokens -= tokens
        self.lengths = [max(0, length - tokens) for length in self.lengths]
        width = max((length - self.window.drained(length) for length in self.lengths), default=0)
        self.held.planes = {name: plane[:, :width].clone() for name, plane in self.held.planes.items()}
        self.described.drop_last(tokens)

    def select(self, rows: Tensor) -> None:
        self.lengths = [self.lengths[row] for row in rows.tolist()]
        for store in self._stores():
            store.select(rows)

    def repeat(self, times: int) -> None:
        self.lengths = [length for length in self.lengths for _ in range(times)]
        for store in self._stores():
            store.repeat(times)

    def clear(self) -> None:
        self.tokens, self.lengths = 0, []
        for store in self._stores():
            store.clear()

    def bytes(self) -> dict[str, int]:
        return {name: size for store in self._stores() for name, size in store.bytes().items()}

    def _stores(self) -> tuple[PlaneStore, ...]:
        return self.held, self.packed, self.described


def column(counts: Sequence[int]) -> Tensor:
    """One number a row, int64 [B, 1] on the host, where indices are made."""
    return torch.tensor(counts)[:, None]


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """[B, N, ...]: row b is x[b, index[b]]; indices beyond the ends (nobody's places) take what lies there."""
    index = index.expand(len(x), -1).clamp(0, max(0, x.shape[1] - 1)).to(x.device)
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def joined(old: Tensor, held: Sequence[int], new: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Rows from the left: the first ``held`` of ``old`` [B, M, ...], then ``counts`` of ``new`` [B, N, ...] from
    ``starts`` on."""
    width = max(a + b for a, b in zip(held, counts, strict=True))
    at = torch.arange(width)
    behind = old.shape[1] + column(starts) + at - column(held)
    return gathered(torch.cat((old, new), 1), torch.where(at < column(held), at, behind))

"""Teacher-forced replay: what fidelity asks of an engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Replay:
    """A prompt and an answer as token ids; every answer token is predicted from all that precede it."""

    id: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class LayerError:
    """Relative error ``|x_hat - x| / |x|`` (Frobenius, over tokens) of one layer and KV head.

    ``key`` and ``value`` compare what is decoded with what was given; ``output`` compares attention over the
    quantized cache with attention over the exact K and V, for the same queries (its G query heads together).
    """

    layer: int
    head: int
    key: float
    value: float
    output: float


@dataclass(frozen=True)
class KeyChannel:
    """One channel of a head's keys over tokens: ``absmax`` and ``rms`` in the units of K.

    ``stage`` before: as the model made them, after RoPE; after: as they meet the quantizer.
    """

    layer: int
    head: int
    channel: int
    stage: str
    absmax: float
    rms: float


class Replayer(Protocol):
    """An engine that can replay an answer through its method's cache."""

    def replay(self, items: Sequence[Replay], chunk: int | None = None) -> Iterator[Any]:
        """Yield logits, float32 [len(answer), vocabulary], for each item in order; row i predicts answer[i].

        ``chunk`` writes the tokens that many at a time in place of the engine's own choice (0: all at once).
        """
        ...

    def layer_errors(self, items: Sequence[Replay]) -> list[LayerError]:
        """Errors of every layer and KV head over the items; each layer sees the input the quantized run gave it."""
        ...

    def key_channels(self, items: Sequence[Replay]) -> list[KeyChannel]:
        """The keys of every layer, head and channel over the items' tokens, in both stages."""
        ...

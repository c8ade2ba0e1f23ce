"""What an engine takes and gives: requests of token ids in, completions and log-likelihoods out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How one request is decoded. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 leave the distribution.

    ``seed`` belongs to the request alone: its draw does not depend on batch mates. ``stop`` strings end a completion
    and are cut from its text; ``ignore_eos`` decodes exactly ``max_new_tokens``.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Request:
    """A prompt as token ids (special tokens included) and how to go on from it."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True)
class Completion:
    """What the model wrote: ``tokens`` with the stop token if one came, ``text`` without it or the stop string."""

    id: str
    tokens: tuple[int, ...]
    text: str
    finish: Finish
    finite: bool = True
    """False where a step's logits held NaN or infinity."""


@dataclass(frozen=True)
class LogLikelihood:
    """Sum of log-probabilities (nats) of a continuation, and whether greedy decoding would have written it."""

    total: float
    greedy: bool
    tokens: int


@dataclass(frozen=True)
class CacheReport:
    """Bytes that the KV cache really allocated, and the values that they hold.

    ``planes`` maps a stored plane (``key.codes``, ``value.pair``, ...) to its bytes; ``shared_bytes`` are counted
    once for the model (codebooks, rotations, means), not for each token. ``bookkeeping_bytes`` (positions of rows) are
    what the block table is in a paged engine: no part of the bits.
    """

    planes: Mapping[str, int]
    tokens: int
    values: int
    shared_bytes: int = 0
    bookkeeping_bytes: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.planes.values())

    @property
    def bits_per_value(self) -> float:
        return 8 * self.bytes / self.values if self.values else float("nan")


class Engine(Protocol):
    """One model with one KV-cache method. ``hf`` (transformers.generate) and ``paged`` stand behind it."""

    tokenizer: Any
    max_length: int

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Yield completions as they finish, in any order."""
        ...

    def loglikelihood(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[LogLikelihood]:
        """Score each (context ids, continuation ids) pair through the method's cache, in order."""
        ...

    def cache_report(self) -> CacheReport:
        """Allocations of the fullest cache seen since the engine was made."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the record states: engine, attention backend, prefill, dtypes, transformers version, ..."""
        ...


@dataclass(frozen=True)
class Score:
    """A verdict on one answer. ``value`` None means unscored, which is not wrong."""

    value: float | None
    answer: str | None
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)

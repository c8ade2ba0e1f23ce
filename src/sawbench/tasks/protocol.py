"""How a benchmark's questions are put to a model: configs/protocol/*.yaml."""

from dataclasses import dataclass
from hashlib import sha256
from math import isfinite

from sawbench.core.engine import Sampling
from sawbench.core.errors import UserError


@dataclass(frozen=True)
class Protocol:
    """Decoding and repetition, the same for every task of a study.

    Args:
        chat: put the question through the tokenizer's chat template.
        thinking: ``enable_thinking`` of the template; None leaves it to the template.
        temperature, top_p, top_k: as in core.engine.Sampling; temperature 0 is greedy.
        max_new_tokens: budget of an answer, thinking included; None takes the task's own.
        repeats: answers to each item, each with a seed of its own.
        items: the first n items only; None takes all.
    """

    name: str = "greedy"
    chat: bool = True
    thinking: bool | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int | None = None
    repeats: int = 1
    items: int | None = None

    def __post_init__(self) -> None:
        for option in ("repeats", "items", "max_new_tokens"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UserError(f"protocol.{option}={value} is below 1")
        if not (isfinite(self.temperature) and self.temperature >= 0 and 0 < self.top_p <= 1 and self.top_k >= 0):
            raise UserError(
                f"protocol.temperature={self.temperature} and protocol.top_k={self.top_k} must be finite, at least 0, "
                f"protocol.top_p={self.top_p} in (0, 1]"
            )

    def require_repeats_that_differ(self) -> None:
        """Raises UserError where an item would get one answer several times over."""
        if self.repeats > 1 and self.temperature == 0:
            raise UserError(
                f"protocol.repeats={self.repeats} of a greedy answer are all alike: set protocol.temperature above 0, "
                "or protocol.repeats=1"
            )

    def sampling(self, budget: int, seed: int, stop: tuple[str, ...] = ()) -> Sampling:
        """One request's decoding. ``budget`` is what the task would take; ``max_new_tokens`` overrides it."""
        return Sampling(self.max_new_tokens or budget, self.temperature, self.top_p, self.top_k, seed, stop)


def request_seed(seed: int, task: str, item: str, repeat: int) -> int:
    """A 56-bit seed from the run's seed and the request's place in the study: the same for every method."""
    digest = sha256(f"{seed}\0{task}\0{item}\0{repeat}".encode()).digest()
    return int.from_bytes(digest[:7])

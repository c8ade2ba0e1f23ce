"""Loads as the paper writes them: D(in, out), exact lengths, end of sequence ignored, a closed loop."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sawbench.core.engine import Request, Sampling
from sawbench.core.errors import UserError

DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class Load:
    """``requests`` prompts of ``input_tokens`` random ids, each answered by exactly ``output_tokens`` tokens, at most
    ``concurrency`` of them at a time: a client that sends the next one when one has ended."""

    name: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int

    @property
    def tokens(self) -> int:
        """Tokens that a request holds in the cache at its end (the last one drawn is never written)."""
        return self.input_tokens + self.output_tokens - 1

    def prompts(self, vocabulary: int, seed: int) -> Iterator[Request]:
        """Requests with greedy sampling; ids uniform over ``vocabulary``, another sequence for every request."""
        sampling = Sampling(self.output_tokens, ignore_eos=True)
        for i in range(self.requests):
            draw = Random(f"{seed} {self.input_tokens} {i}")
            yield Request(f"{self.name}-{i}", tuple(draw.choices(range(vocabulary), k=self.input_tokens)), sampling)

    def check(self, max_length: int, max_running: int) -> None:
        """Raises UserError for a load that an engine with these limits cannot run as it is written."""
        if min(self.input_tokens, self.output_tokens - 1, self.concurrency, self.requests) < 1:
            raise UserError(f"load={self.name}: needs a prompt, two output tokens or more, a concurrency and requests")
        if self.input_tokens + self.output_tokens > max_length:
            raise UserError(f"load={self.name}: {self.input_tokens} + {self.output_tokens} tokens exceed the model's "
                            f"context of {max_length}: load.input_tokens=, load.output_tokens=")  # fmt: skip
        if min(self.concurrency, self.requests) > max_running:
            raise UserError(f"load.concurrency={self.concurrency} exceeds engine.max_running={max_running}")

    def cut(self, requests: int, output_tokens: int) -> "Load":
        """A shorter load of the same prompts' length."""
        return replace(self, requests=requests, output_tokens=output_tokens)


def loads(config: Any) -> list[Load]:
    """One Load for each of ``config.concurrency`` (configs/load/X.yaml).

    Raises:
        UserError: ``requests`` is neither one number nor as many as there are concurrencies.
    """
    levels = list(config.concurrency) if not isinstance(config.concurrency, int) else [config.concurrency]
    counts = config.requests
    counts = [counts] * len(levels) if isinstance(counts, int) else levels if counts is None else list(counts)
    if len(counts) != len(levels):
        raise UserError(f"load.requests={counts} has not one number for each of load.concurrency={levels}")
    sizes = (config.input_tokens, config.output_tokens)
    name = "d{}_{}".format(*sizes)
    return [Load(name, *sizes, level, count) for level, count in zip(levels, counts, strict=True)]


def number(text: object, option: str) -> int:
    """``10M``, ``128k``, ``1.5G`` (decimal), ``80Gi`` (binary) or a plain number.

    Raises:
        UserError: it is none of these, or not above zero.
    """
    found = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kmgt]i?)?b?", str(text).strip().lower())
    try:
        value = float(found[1]) * (DECIMAL | BINARY)[found[2] or ""] if found else 0.0
    except ValueError:
        value = 0.0
    if value < 1:
        raise UserError(f"{option}={text} is no number such as 131072, 128k, 10M, 1.5G or 80Gi")
    return round(value)

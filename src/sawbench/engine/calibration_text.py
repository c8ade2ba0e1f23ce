"""The text that calibration reads: the model's own, a file of the user's, or the paper's. Never another benchmark."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from sawbench.core.engine import Request, Sampling
from sawbench.core.errors import UserError
from sawbench.core.files import made_once, write_atomic
from sawbench.core.progress import Progress
from sawbench.prompts import encode_prompt, shipped

BATCH = 16  # conversations written at once


class CalibrationText(Protocol):
    """A source of tokens. ``tokens`` None: as many as the method wants. ``artifact``: a file to use as it is."""

    @property
    def tokens(self) -> int | None: ...

    @property
    def seed(self) -> int: ...

    @property
    def artifact(self) -> str | None: ...

    def describe(self) -> dict[str, Any]:
        """What decides the text, apart from the model and the number of tokens; part of an artifact's key."""
        ...

    def read(self, engine: Any, count: int, progress: Progress) -> list[int]:
        """``count`` token ids; ``engine`` is the unquantized model's."""
        ...


@dataclass(frozen=True)
class SelfWritten:
    """The model's own conversations: the shipped calibration prompts and its answers, sampled from its distribution as
    it is (temperature 1, no top-p), so that rare tokens come as often as the model would write them. Prompts count as
    text, since a cache holds them too; when all 64 are used up they are asked again under other seeds."""

    answer_tokens: int = 128
    temperature: float = 1.0
    tokens: int | None = None
    seed: int = 0
    artifact: str | None = None

    def describe(self) -> dict[str, Any]:
        prompts = "\n".join(prompt.text for prompt in shipped("calibration"))
        return {
            "source": "the model itself",
            "prompts_sha256": sha256(prompts.encode()).hexdigest(),
            "answer_tokens": self.answer_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }

    def read(self, engine: Any, count: int, progress: Progress) -> list[int]:
        ids: list[int] = []
        for conversation in progress(self._conversations(engine), None, f"calibration text, {count} tokens"):
            ids += conversation
            if len(ids) >= count:
                break
        return ids[:count]

    def _conversations(self, engine: Any) -> Iterator[tuple[int, ...]]:
        """Prompt and answer, without an end, in an order that does not depend on which answer is finished first."""
        prompts = [encode_prompt(engine.tokenizer, prompt.text) for prompt in shipped("calibration")]
        for first in itertools.count(0, BATCH):
            requests = [self._request(number, prompts[number % len(prompts)]) for number in range(first, first + BATCH)]
            answers = {completion.id: completion.tokens for completion in engine.generate(requests)}
            yield from (request.prompt + answers[request.id] for request in requests)

    def _request(self, number: int, prompt: Sequence[int]) -> Request:
        sampling = Sampling(self.answer_tokens, self.temperature, seed=self.seed * 1_000_003 + number)
        return Request(str(number), tuple(prompt), sampling)


@dataclass(frozen=True)
class TextFile:
    """The first tokens of a UTF-8 text file."""

    text: str
    tokens: int | None = None
    seed: int = 0
    artifact: str | None = None

    def describe(self) -> dict[str, Any]:
        """Raises UserError where the file cannot be read as text."""
        return {"source": "file", "sha256": sha256(self._content().encode()).hexdigest(), "seed": self.seed}

    def read(self, engine: Any, count: int, progress: Progress) -> list[int]:
        return first_tokens(engine.tokenizer, [self._content()], count, f"calibration.text={self.text}")

    def _content(self) -> str:
        try:
            return Path(self.text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"calibration.text={self.text} cannot be read: {error}") from error


@dataclass(frozen=True)
class MmluPro:
    """MMLU-Pro's test questions with their options, in the data set's order: what the paper calibrated on. It is a
    benchmark: a method calibrated on it must not be scored on it.

    ``data`` is a local JSON-lines file of the same shape (``question``, ``options``) in the place of the hub's.
    """

    data: str | None = None
    tokens: int | None = 20_000
    seed: int = 0
    artifact: str | None = None

    def describe(self) -> dict[str, Any]:
        return {"source": "TIGER-Lab/MMLU-Pro test", "data": self.data, "seed": self.seed}

    def read(self, engine: Any, count: int, progress: Progress) -> list[int]:
        """Raises UserError where the data set cannot be had."""
        return first_tokens(engine.tokenizer, (_question(row) for row in self._rows()), count, "MMLU-Pro")

    def _rows(self) -> Any:
        if self.data is not None:
            lines = TextFile(self.data)._content().splitlines()
            return (json.loads(line) for line in lines if line.strip())
        from datasets import load_dataset

        try:
            return load_dataset("TIGER-Lab/MMLU-Pro", split="test")
        except Exception as error:  # offline, mirrors and proxies each raise another class, and all mean the same
            raise UserError(
                f"calibration=paper needs TIGER-Lab/MMLU-Pro, which could not be loaded ({type(error).__name__}); "
                "calibration.data=FILE.jsonl takes a local copy, calibration=self needs none"
            ) from error


def _question(row: dict[str, Any]) -> str:
    options = (f"{chr(65 + at)}. {option}" for at, option in enumerate(row["options"]))
    return "\n".join(["Question: " + row["question"], *options, ""])


def first_tokens(tokenizer: Any, texts: Any, count: int, name: str) -> list[int]:
    """The first ``count`` token ids of texts one after another.

    Raises:
        UserError: they hold fewer.
    """
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= count:
            return ids[:count]
    raise UserError(f"{name} holds {len(ids)} tokens; this calibration needs {count}")


def self_or_file(text: str | None = None, **options: Any) -> CalibrationText:
    """``calibration=self``: the model's own text, or ``calibration.text=FILE``."""
    if text is None:
        return SelfWritten(**options)
    common = {key: options[key] for key in ("tokens", "seed", "artifact") if key in options}
    return TextFile(text, **common)


@dataclass(frozen=True)
class TextShelf:
    """Token ids of texts already read, under ``folder``: writing 4,096 tokens takes longer than fitting them."""

    folder: Path

    def tokens(self, text: CalibrationText, made_by: Any, engine: Any, count: int, progress: Progress) -> list[int]:
        """The text of ``made_by`` (the model's identity), from disk or read now and kept."""
        key = {"text": text.describe(), "model": made_by, "tokens": count}
        digest = sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:24]
        path = self.folder / f"text-{digest}.json"

        def make() -> None:
            write_atomic(path, json.dumps({**key, "ids": text.read(engine, count, progress)}, default=str))

        made_once(path, make)
        return list(json.loads(path.read_text())["ids"])

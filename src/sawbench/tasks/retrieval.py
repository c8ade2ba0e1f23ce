"""Questions about a generated long text: asked of the engine, scored by the strings that an answer must hold."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sawbench.core.engine import Completion, Request, Sampling, Score
from sawbench.core.errors import UserError
from sawbench.core.progress import Progress, silent
from sawbench.core.records import TaskResult
from sawbench.scoring.text import answer_of, opens_thought
from sawbench.stats import proportion_interval
from sawbench.tasks.base import TaskContext
from sawbench.tasks.benchmark import Sample, score_row, share, shares

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

Cell = Mapping[str, Any]
"""Where a question stands in the grid of its task: length, depth, kind, ..."""


@dataclass(frozen=True)
class Probe:
    """A prompt with what its answer must hold."""

    id: str
    prompt: tuple[int, ...]
    expected: tuple[str, ...]
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class Retrieval(ABC):
    """Base of the tasks that hide something in texts of set lengths and ask for it, greedily.

    Args:
        lengths: tokens of prompt and answer together, chat template included.
        max_new_tokens: budget of an answer.
    """

    name: str
    lengths: Sequence[int]
    max_new_tokens: int

    axes: ClassVar[tuple[str, ...]]
    """Of a cell, those that the table has rows for."""

    @abstractmethod
    def cells(self) -> Iterator[Cell]:
        """The grid, a cell for each question."""

    @abstractmethod
    def probe(self, cell: Cell, tokenizer: Any, seed: int) -> Probe:
        """The question of a cell, drawn from the seed and the cell alone."""

    @abstractmethod
    def verdict(self, text: str, expected: Sequence[str], thought_open: bool) -> Score: ...

    def probes(self, tokenizer: Any, seed: int) -> Iterator[Probe]:
        return (self.probe(cell, tokenizer, seed) for cell in self.cells())

    def run(self, ctx: TaskContext) -> TaskResult:
        total, tokenizer = len(list(self.cells())), ctx.engine.tokenizer
        probes = {each.id: each for each in ctx.progress(self.probes(tokenizer, ctx.seed), total, "texts")}
        missing = [Request(p.id, p.prompt, Sampling(self.max_new_tokens)) for p in probes.values()
                   if p.id not in ctx.sink.done]  # fmt: skip
        for completion in ctx.progress(ctx.engine.generate(missing), len(missing), "questions"):
            ctx.sink.add(completion.id, self._sample(probes[completion.id], completion, tokenizer))
        return self.result(list(ctx.sink.done.values()))

    def _sample(self, probe: Probe, completion: Completion, tokenizer: Any) -> dict[str, Any]:
        opened = opens_thought(tokenizer.decode(list(probe.prompt)))
        score = self.verdict(completion.text, probe.expected, opened)
        return {
            **probe.cell,
            "prompt_tokens": len(probe.prompt),
            "thought_open": opened,
            "expected": list(probe.expected),
            "text": completion.text,
            "tokens": len(completion.tokens),
            "finish": completion.finish,
            "finite": completion.finite,
            "score": score.value,
            "answer": score.answer,
            "reason": score.reason,
        }

    def counted(self, samples: Sequence[Sample]) -> tuple[int, int]:
        """How many of the grid's answers there are, and of how many."""
        wanted = {key_of(cell) for cell in self.cells()}
        return len(wanted & self._by_key(samples).keys()), len(wanted)

    def result(self, samples: Sequence[Sample], progress: Progress = silent) -> TaskResult:
        """Share found with its interval, over all samples and for each cell of the axes, by today's verdicts."""
        by_key = self._by_key(samples)
        ordered = [by_key[key] for key in map(key_of, self.cells())]
        scores = [self.verdict(s["text"], s["expected"], s["thought_open"]) for s in ordered]
        values = [score.value or 0.0 for score in scores]
        found = share("found", values, [sample["item"] for sample in ordered])
        cells: dict[tuple[Any, ...], list[float]] = {}
        for sample, value in zip(ordered, values, strict=True):
            cells.setdefault(tuple(sample[axis] for axis in self.axes), []).append(value)
        table = [{**dict(zip(self.axes, cell, strict=True)), **_share(each)} for cell, each in cells.items()]
        return TaskResult(
            (found, *shares(ordered, scores)), {self.name: table, "scores": list(map(score_row, ordered, scores))}
        )

    def _by_key(self, samples: Sequence[Sample]) -> dict[str, Sample]:
        """Samples by their cell, each an item of its own. Older ones say neither tokens nor an opened thought."""
        keys = next(self.cells()).keys()
        found = {key_of({axis: sample[axis] for axis in keys}): sample for sample in samples}
        older = {"tokens": None, "thought_open": False}
        return {key: {**older, **sample, "item": key, "repeat": 0} for key, sample in found.items()}


def key_of(cell: Cell) -> str:
    """The id of a cell's sample."""
    return "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in cell.values())


def first_number(text: str, expected: Sequence[str], thought_open: bool = False) -> Score:
    """1 where the first number of the answer in ``text`` is the expected one, else 0."""
    answer = answer_of(text, thought_open)
    if answer is None:
        return UNCLOSED
    found = re.search(r"\d+", answer)
    if found is None:
        return Score(0.0, None, "no number")
    right = found[0] == expected[0]
    return Score(float(right), found[0], "right" if right else f"not {expected[0]}")


def all_found(text: str, expected: Sequence[str], thought_open: bool = False) -> Score:
    """Share of ``expected`` that stand in the answer in ``text`` as whole words: 48213 is not found in 148213."""
    answer = answer_of(text, thought_open)
    if answer is None:
        return UNCLOSED
    missing = [word for word in expected if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer)]
    reason = f"missing: {', '.join(missing)}" if missing else "all found"
    return Score((len(expected) - len(missing)) / len(expected), answer.strip() or None, reason)


UNCLOSED = Score(0.0, None, "the thought never ends")


def check_lengths(plan: "ModelPlan", lengths: Sequence[int], new_tokens: int) -> None:
    """Raises UserError where a prompt of one of ``lengths`` tokens, its answer included, exceeds the context."""
    if not lengths or min(lengths) <= new_tokens:
        raise UserError(f"task.lengths={list(lengths)}: every length is above task.max_new_tokens={new_tokens}")
    if max(lengths) > plan.max_length:
        fitting = [length for length in lengths if length <= plan.max_length]
        raise UserError(
            f"task.lengths={max(lengths)} does not fit the context of {plan.name}, {plan.max_length} tokens; "
            f"of these lengths fit: {fitting or 'none'}"
        )


def _share(scores: Sequence[float]) -> dict[str, Any]:
    share, low, high = proportion_interval(scores)
    return {"score": share, "low": low, "high": high, "n": len(scores)}

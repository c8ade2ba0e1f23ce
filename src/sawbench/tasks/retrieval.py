"""Questions about a generated long text: asked of the engine, scored by the strings that an answer must hold."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sawbench.core.engine import Completion, Request, Sampling, Score
from sawbench.core.errors import UserError
from sawbench.core.records import Metric, TaskResult
from sawbench.stats import proportion_interval
from sawbench.tasks.base import TaskContext

if TYPE_CHECKING:
    from sawbench.models import ModelPlan


@dataclass(frozen=True)
class Probe:
    """A prompt with what its answer must hold. ``cell`` places it in the table: length, depth, kind, ..."""

    id: str
    prompt: tuple[int, ...]
    expected: tuple[str, ...]
    cell: Mapping[str, Any]


Verdict = Callable[[str, Sequence[str]], Score]


def first_number(answer: str, expected: Sequence[str]) -> Score:
    """1 where the first number of ``answer`` is the expected one, else 0."""
    found = re.search(r"\d+", answer)
    if found is None:
        return Score(0.0, None, "no number")
    right = found[0] == expected[0]
    return Score(float(right), found[0], "right" if right else f"not {expected[0]}")


def all_found(answer: str, expected: Sequence[str]) -> Score:
    """Share of ``expected`` that stand in ``answer`` as whole words: 48213 is not found in 148213."""
    found = [word for word in expected if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer)]
    reason = (
        "all found" if len(found) == len(expected) else f"missing: {', '.join(w for w in expected if w not in found)}"
    )
    return Score(len(found) / len(expected), " ".join(found) or None, reason)


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


def ask(ctx: TaskContext, probes: Sequence[Probe], new_tokens: int, verdict: Verdict) -> list[Mapping[str, Any]]:
    """Samples of all probes, in order; those that an earlier run left are not asked again."""
    by_id = {probe.id: probe for probe in probes}
    missing = [Request(p.id, p.prompt, Sampling(new_tokens)) for p in probes if p.id not in ctx.sink.done]
    for completion in ctx.progress(ctx.engine.generate(missing), len(missing), "questions"):
        ctx.sink.add(completion.id, _sample(by_id[completion.id], completion, verdict))
    return [ctx.sink.done[probe.id] for probe in probes]


def _sample(probe: Probe, completion: Completion, verdict: Verdict) -> dict[str, Any]:
    score = verdict(completion.text, probe.expected)
    return {
        **probe.cell,
        "prompt_tokens": len(probe.prompt),
        "expected": list(probe.expected),
        "text": completion.text,
        "finish": completion.finish,
        "finite": completion.finite,
        "score": score.value,
        "answer": score.answer,
        "reason": score.reason,
    }


def result(samples: Sequence[Mapping[str, Any]], axes: Sequence[str], table: str) -> TaskResult:
    """Share found with its interval, over all samples and for each cell of ``axes``."""
    cells: dict[tuple[Any, ...], list[float]] = {}
    for sample in samples:
        cells.setdefault(tuple(sample[axis] for axis in axes), []).append(sample["score"])
    rows = [{**dict(zip(axes, cell, strict=True)), **_share(scores)} for cell, scores in cells.items()]
    overall = _share([sample["score"] for sample in samples])
    broken = [not sample["finite"] for sample in samples]
    metrics = (
        Metric("found", overall["score"], "share", overall["low"], overall["high"], n=len(samples)),
        Metric("non_finite", sum(broken) / len(broken), "share", n=len(samples)),
    )
    return TaskResult(metrics, {table: rows})


def _share(scores: Sequence[float]) -> dict[str, Any]:
    share, low, high = proportion_interval(scores)
    return {"score": share, "low": low, "high": high, "n": len(scores)}

"""Any task that lm-eval has, through our bridge: ``task=lm_eval task.name=NAME``."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sawbench.core.errors import UserError
from sawbench.core.records import Metric, TaskResult
from sawbench.tasks.base import TaskContext
from sawbench.tasks.benchmark import Sample, conditions, fraction, runaway, share, told
from sawbench.tasks.protocol import Protocol

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

Row = Mapping[str, Any]
Samples = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, kw_only=True)
class LmEval:
    """Options of ``task=lm_eval``.

    Args:
        name: a task or group.
        protocol: decoding, chat template, items and answers to each; a task's stop strings are its own, and repeats
            that it has of itself are all asked for in each of the protocol's.
        max_new_tokens: budget where neither protocol nor task says one.
        num_fewshot: examples in the prompt; None leaves them to the task.
        include_path: a folder of task definitions to take in place of lm-eval's (their Python is run).
    """

    name: str
    protocol: Protocol
    max_new_tokens: int = 256
    num_fewshot: int | None = None
    include_path: str | None = None

    def check(self, plan: "ModelPlan") -> None:
        """Raises UserError for a name that lm-eval does not know, data that do not load, repeats that would all be
        alike, and tasks that run code: lm-eval would run it in this process."""
        self.protocol.require_repeats_that_differ()
        for task in self._load()["tasks"].values():
            if getattr(task, "UNSAFE_CODE", False):
                raise UserError(
                    f"task.name={self.name} runs the model's code without a sandbox; task=humaneval has one"
                )
            if self.protocol.repeats > 1 and task.OUTPUT_TYPE != "generate_until":
                raise UserError(
                    f"protocol.repeats={self.protocol.repeats}: task.name={self.name} asks for log-likelihoods, which "
                    "are the same each time; protocol.repeats=1"
                )

    def _load(self) -> Any:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=self.include_path, include_defaults=self.include_path is None)
        if self.name not in manager.all_tasks:
            close = difflib.get_close_matches(self.name, manager.all_tasks, 5)
            raise UserError(f"task.name={self.name} is no task of lm-eval; close to it: {', '.join(close) or 'none'}")
        try:
            return manager.load([self.name])
        except Exception as error:  # a definition loads its data by any client, each with errors of its own
            first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise UserError(f"task.name={self.name}: lm-eval cannot load it ({first})") from error

    def run(self, ctx: TaskContext) -> TaskResult:
        from lm_eval.evaluator import evaluate

        from sawbench.tasks.lm_bridge import EngineLM

        lm = EngineLM(
            ctx.engine, self.protocol, ctx.sink, seed=ctx.seed, budget=self.max_new_tokens, progress=ctx.progress
        )
        rounds = []
        for repeat in range(self.protocol.repeats):
            lm.round = repeat
            found = evaluate(
                lm,
                self._prepared(ctx.seed),
                limit=self.protocol.items,
                bootstrap_iters=0,
                apply_chat_template=self.protocol.chat,
                fewshot_as_multiturn=self.protocol.chat,
            )
            rounds.append((found["results"], found["samples"]))
        result = summarized(rounds)
        texts = [sample for sample in ctx.sink.done.values() if "text" in sample]
        metrics = (*result.metrics, *beside(texts, [samples for _, samples in rounds]))
        return TaskResult(metrics, {**result.tables, "conditions": [self._conditions() | told(texts)]})

    def _conditions(self) -> dict[str, Any]:
        budget = {"max_new_tokens": self.protocol.max_new_tokens or self.max_new_tokens}
        examples = {"num_fewshot": "as the task has it" if self.num_fewshot is None else self.num_fewshot}
        return conditions(self.protocol) | budget | examples

    def _prepared(self, seed: int) -> Any:
        """The tasks as lm-eval's own command line would set them up: examples in the prompt drawn under the seed, and
        a task that asks for none keeps none. Nothing is right in them without an answer."""
        from sawbench.tasks.lm_broken import strict

        loaded = self._load()
        for task in loaded["tasks"].values():
            if task.get_config("num_fewshot") is None:
                task.set_config("num_fewshot", self.num_fewshot or 0)
            elif self.num_fewshot is not None and task.get_config("num_fewshot") != 0:
                task.set_config("num_fewshot", self.num_fewshot)
            task.set_fewshot_seed(seed)
            strict(task)
        return loaded


def summarized(rounds: Sequence[tuple[Mapping[str, Row], Samples]]) -> TaskResult:
    """lm-eval's numbers under its own keys (``acc,none``), each the mean over ``rounds`` (its results and samples, once
    for each repeat), with our intervals where a value is a share of items. The table of scores holds the items
    of each task's first metric."""
    results, samples = rounds[0]
    found = {
        (task, key): metric(
            key if len(results) == 1 else f"{task}/{key}",
            fmean(each[task][key] for each, _ in rounds),
            [row for _, samples in rounds for row in _rows(key, samples.get(task, ()))],
        )
        for task, row in results.items()
        for key, value in row.items()
        if "," in key and "_stderr" not in key and isinstance(value, int | float)
    }
    rows = [
        {**row, "metric": found[task, key].name}
        for task, key in first_metrics(found, samples)
        for repeat, (_, samples) in enumerate(rounds)
        for row in _rows(key, samples[task], repeat)
    ]
    return TaskResult(tuple(found.values()), {"scores": rows})


def first_metrics(found: Iterable[tuple[str, str]], samples: Samples) -> list[tuple[str, str]]:
    """The first metric of each task that has a number for every item, as (task, key)."""
    first: dict[str, tuple[str, str]] = {}
    for task, key in found:
        if task not in first and any(row["value"] is not None for row in _rows(key, samples.get(task, ()))):
            first[task] = task, key
    return list(first.values())


def metric(name: str, value: float, rows: Sequence[Row]) -> Metric:
    """A metric; in percent, with its interval, if the value is the mean of its rows' numbers in [0, 1]. Rows of one
    item are its repeats. A value that is no number is None."""
    numbers = [row["value"] for row in rows if row["value"] is not None]
    shares = len(numbers) == len(rows) > 0 and min(numbers) >= 0 and max(numbers) <= 1
    if not shares or abs(fmean(numbers) - value) > 1e-9:
        return Metric(name, float(value) if isfinite(value) else None, "", n=len(rows) or None)
    return share(name, numbers, [str(row["item"]) for row in rows])


def beside(texts: Sequence[Sample], rounds: Sequence[Samples]) -> list[Metric]:
    """What stands beside the scores: answers that are none, cut or looping, and the share of answers, or of items whose
    log-likelihoods were taken, that are not finite."""
    from sawbench.tasks.lm_broken import NO_ANSWER, NOT_FINITE, flaw

    items = [row["resps"] for samples in rounds for rows in samples.values() for row in rows
             if row["filter"] == rows[0]["filter"]]  # fmt: skip
    written = [flaw(item) for item in items if isinstance(item[0][0], str)]
    scored = [flaw(item) for item in items if not isinstance(item[0][0], str)]
    broken = [not sample["finite"] for sample in texts] + [each == NOT_FINITE for each in scored]
    answers = [fraction("no_answer", [each == NO_ANSWER for each in written]), *runaway(texts)] if texts else []
    return [*(m for m in answers if m.name != "non_finite"), fraction("non_finite", broken)]


def _rows(key: str, samples: Sequence[Row], repeat: int = 0) -> list[dict[str, Any]]:
    """Item and value of each sample that a metric is the mean of, and why the item is wrong where lm-eval has no say in
    it; a value that is no finite number is None."""
    from sawbench.tasks.lm_broken import flaw

    name, _, filtered = key.partition(",")
    return [
        {"item": sample["doc_id"], "repeat": repeat, "value": _number(sample[name]), "reason": flaw(sample["resps"])}
        for sample in samples
        if sample["filter"] == filtered and name in sample
    ]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None

"""Any task that lm-eval has, through our bridge: ``task=lm_eval task.name=NAME``."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sawbench.core.errors import UserError
from sawbench.core.records import Metric, TaskResult
from sawbench.stats import proportion_interval
from sawbench.tasks.base import TaskContext
from sawbench.tasks.benchmark import runaway
from sawbench.tasks.protocol import Protocol

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class LmEval:
    """Options of ``task=lm_eval``.

    Args:
        name: a task or group.
        protocol: decoding, chat template and the number of items; a task's stop strings and repeats are its own.
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
        """Raises UserError for a name that lm-eval does not know, data that do not load, and tasks that run code:
        lm-eval would run it in this process."""
        for task in self._load()["tasks"].values():
            if getattr(task, "UNSAFE_CODE", False):
                raise UserError(
                    f"task.name={self.name} runs the model's code without a sandbox; task=humaneval has one"
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
        results = evaluate(
            lm,
            self._prepared(ctx.seed),
            limit=self.protocol.items,
            bootstrap_iters=0,
            apply_chat_template=self.protocol.chat,
            fewshot_as_multiturn=self.protocol.chat,
        )
        result = summarized(results["results"], results["samples"])
        texts = [sample for sample in ctx.sink.done.values() if "text" in sample]
        return replace(result, metrics=(*result.metrics, *(runaway(texts) if texts else ())))

    def _prepared(self, seed: int) -> Any:
        """The tasks as lm-eval's own command line would set them up: examples in the prompt drawn under the seed, and
        a task that asks for none keeps none."""
        loaded = self._load()
        for task in loaded["tasks"].values():
            if task.get_config("num_fewshot") is None:
                task.set_config("num_fewshot", self.num_fewshot or 0)
            elif self.num_fewshot is not None and task.get_config("num_fewshot") != 0:
                task.set_config("num_fewshot", self.num_fewshot)
            task.set_fewshot_seed(seed)
        return loaded


def summarized(results: Mapping[str, Row], samples: Mapping[str, Sequence[Row]]) -> TaskResult:
    """lm-eval's numbers under its own keys (``acc,none``), with our intervals where a value is a share of items. The
    table of scores holds the first metric's items."""
    found = {
        (task, key): metric(key if len(results) == 1 else f"{task}/{key}", value, _values(key, samples.get(task, ())))
        for task, row in results.items()
        for key, value in row.items()
        if "," in key and "_stderr" not in key and isinstance(value, int | float)
    }
    rows = next((_rows(key, samples[task]) for task, key in found if samples.get(task)), [])
    return TaskResult(tuple(found.values()), {"scores": rows})


def metric(name: str, value: float, values: Sequence[Any]) -> Metric:
    """A metric; in percent, with its interval, if the value is the mean of its items' numbers in [0, 1]."""
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if not numbers or min(numbers) < 0 or max(numbers) > 1 or abs(sum(numbers) / len(numbers) - value) > 1e-9:
        return Metric(name, float(value), "", n=len(values) or None)
    found = proportion_interval(numbers)
    return Metric(name, 100 * found.value, "%", 100 * found.low, 100 * found.high, len(numbers))


def _of(key: str, samples: Sequence[Row]) -> list[tuple[Any, Any]]:
    """Item and value of each sample that a metric is the mean of."""
    name, _, filtered = key.partition(",")
    return [(s["doc_id"], s[name]) for s in samples if s["filter"] == filtered and name in s]


def _values(key: str, samples: Sequence[Row]) -> list[Any]:
    return [value for _, value in _of(key, samples)]


def _rows(key: str, samples: Sequence[Row]) -> list[dict[str, Any]]:
    found = _of(key, samples)
    return [{"item": item, "repeat": 0, "value": value} for item, value in found if isinstance(value, int | float)]

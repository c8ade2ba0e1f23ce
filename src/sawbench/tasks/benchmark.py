"""A benchmark: questions through an lm-eval definition of our own, answers on disk, then verdicts and their shares.

Answers come first and are durable; scoring reads them back, so that ``rescore`` can repeat it offline.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sawbench.core.engine import Score
from sawbench.core.errors import UserError
from sawbench.core.progress import Progress, silent
from sawbench.core.records import Metric, TaskResult
from sawbench.scoring import VERSION
from sawbench.scoring.text import is_loop, opens_thought
from sawbench.stats import proportion_interval
from sawbench.tasks.base import TaskContext
from sawbench.tasks.protocol import Protocol

if TYPE_CHECKING:
    from lm_eval.api.task import ConfigurableTask

    from sawbench.models import ModelPlan
    from sawbench.tasks.lm_bridge import EngineLM

DEFINITIONS = Path(__file__).parent / "definitions"
ANSWER_SHOWN = 60
"""Characters of an answer that the table of scores shows; samples.jsonl has it whole."""

Sample = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Benchmark(ABC):
    """Base of the tasks in configs/task that ask for answers.

    Args:
        name: of the task and of its lm-eval definition.
        protocol: how questions are put.
        data: local file of the hub data set's columns; None loads the hub's.
        max_new_tokens: budget of an answer where the protocol leaves it open.
    """

    name: str
    protocol: Protocol
    data: str | None = None
    max_new_tokens: int = 1024

    metric: ClassVar[str] = "accuracy"
    repeats_differ: ClassVar[bool] = False
    """Whether repeats put different questions (options permuted), so that greedy repeats make sense."""

    @abstractmethod
    def score(self, samples: Sequence[Sample], progress: Progress = silent) -> list[Score]:
        """A verdict for each sample, from what the sample holds."""

    def check(self, plan: "ModelPlan") -> None:
        """Refuse what cannot run: a budget beyond the context, repeats that would all be alike, missing data."""
        budget = self.protocol.max_new_tokens or self.max_new_tokens
        if budget >= plan.max_length:
            raise UserError(
                f"protocol.max_new_tokens={budget} does not fit the context of {plan.name}: {plan.max_length} tokens"
            )
        if not self.repeats_differ:
            self.protocol.require_repeats_that_differ()
        self.definition(seed=0)

    def inputs(self) -> Mapping[str, str]:
        """SHA-256 of a local data file: part of a cell's identity."""
        return {} if self.data is None else {"data": sha256(Path(self.data).read_bytes()).hexdigest()}

    def definition(self, seed: int) -> "ConfigurableTask":
        """The lm-eval task with its documents loaded, one for each (item, repeat)."""
        asked = {"data": self.data, "repeats": self.protocol.repeats, "items": self.protocol.items, "seed": seed}
        return load_definition(self.name, {**asked, **self.extra()})

    def extra(self) -> Mapping[str, Any]:
        """What else this task's documents depend on."""
        return {}

    def run(self, ctx: TaskContext) -> TaskResult:
        from sawbench.tasks.lm_bridge import EngineLM  # lm-eval takes two seconds to import

        lm = EngineLM(
            ctx.engine, self.protocol, ctx.sink, seed=ctx.seed, budget=self.max_new_tokens, progress=ctx.progress
        )
        instances = self._instances(lm, ctx.seed)
        lm.generate_until(instances)
        return self.result(list(ctx.sink.done.values()), ctx.progress)

    def _instances(self, lm: "EngineLM", seed: int) -> list[Any]:
        task = self.definition(seed)
        task.set_config("num_fewshot", 0)
        task.build_all_requests(
            apply_chat_template=self.protocol.chat,
            chat_template=lm.apply_chat_template if self.protocol.chat else None,
            fewshot_as_multiturn=True,
            tokenizer_name=lm.tokenizer_name,
        )
        return list(task.instances)

    def counted(self, samples: Sequence[Sample]) -> tuple[int, int | None]:
        """How many of this benchmark's answers there are, and of how many; None where none says it."""
        ours = [sample for sample in samples if sample.get("task") == self.name]
        return len(ours), ours[0]["of"] if ours else None

    def result(self, samples: Sequence[Sample], progress: Progress = silent) -> TaskResult:
        """Metrics and the table of scores, from this benchmark's samples alone."""
        ours = [sample for sample in samples if sample.get("task") == self.name]
        ordered = sorted(ours, key=lambda s: (str(s["item"]), s["repeat"]))
        scores = self.score(ordered, progress)
        metrics = (*self.headline(ordered, scores), *shares(ordered, scores))
        rows = [score_row(sample, score) for sample, score in zip(ordered, scores, strict=True)]
        return TaskResult(metrics, {"scores": rows, "conditions": [self.conditions() | told(ordered)]})

    def headline(self, samples: Sequence[Sample], scores: Sequence[Score]) -> tuple[Metric, ...]:
        """The task's own metrics, the first of which is its name in a table."""
        return (share(self.metric, [score.value for score in scores], items_of(samples)),)

    def conditions(self) -> dict[str, Any]:
        """What the numbers hold for."""
        return conditions(self.protocol) | {
            "max_new_tokens": self.protocol.max_new_tokens or self.max_new_tokens,
            "scoring": VERSION,
        }


def load_definition(name: str, metadata: Mapping[str, Any]) -> "ConfigurableTask":
    """Our lm-eval task ``name``, its documents made under ``metadata``."""
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of every custom data set
    manager = TaskManager(include_path=str(DEFINITIONS), include_defaults=False, metadata=dict(metadata))
    return manager.load([name])["tasks"][name]


def thought_open(sample: Sample) -> bool:
    """Whether the sample's prompt had opened a thought."""
    return opens_thought(sample["prompt"])


def told(samples: Sequence[Sample]) -> dict[str, Any]:
    """What the chat template was told in fact; older samples do not say it."""
    return {"protocol.thinking": samples[0]["thinking"]} if samples and "thinking" in samples[0] else {}


def conditions(protocol: Protocol) -> dict[str, Any]:
    """A protocol as columns of what numbers hold for."""
    return {f"protocol.{key}": value for key, value in asdict(protocol).items()}


def items_of(samples: Sequence[Sample]) -> list[str]:
    return [str(sample["item"]) for sample in samples]


def share(name: str, values: Sequence[float | None], items: Sequence[str]) -> Metric:
    """Mean of values in [0, 1] in percent, with its 95 % interval; repeats of an item are one cluster. None is left
    out: unscored is not wrong."""
    kept = [(value, item) for value, item in zip(values, items, strict=True) if value is not None]
    if not kept:
        return Metric(name, None, "%", n=0)
    found = proportion_interval([value for value, _ in kept], [item for _, item in kept])
    return Metric(name, 100 * found.value, "%", 100 * found.low, 100 * found.high, len(kept))


def shares(samples: Sequence[Sample], scores: Sequence[Score]) -> list[Metric]:
    """What stands beside every score: how many answers were empty, unscored, cut, looping, numerically broken."""
    return [
        fraction("no_answer", [score.answer is None for score in scores]),
        fraction("unscored", [score.value is None for score in scores]),
        *runaway(samples),
    ]


def runaway(samples: Sequence[Sample]) -> list[Metric]:
    """Signs of a broken model in its texts, so that a score of 0 shows what it was made of."""
    counts = [sample["tokens"] for sample in samples if sample["tokens"] is not None]
    return [
        fraction("truncated", [sample["finish"] == "length" for sample in samples]),
        fraction("loops", [is_loop(sample["text"]) for sample in samples]),
        fraction("non_finite", [not sample["finite"] for sample in samples]),
        Metric("answer_tokens", sum(counts) / len(counts) if counts else None, "tokens", n=len(counts)),
    ]


def fraction(name: str, flags: Sequence[bool]) -> Metric:
    return Metric(name, 100 * sum(flags) / len(flags), "%", n=len(flags))


def score_row(sample: Sample, score: Score) -> dict[str, Any]:
    """A row of the table of scores."""
    shown = None if score.answer is None else " ".join(score.answer.split())[:ANSWER_SHOWN]
    return {
        "item": sample["item"],
        "repeat": sample["repeat"],
        "value": score.value,
        "answer": shown,
        "reason": score.reason,
        "finish": sample["finish"],
        "tokens": sample["tokens"],
        "loop": is_loop(sample["text"]),
        "finite": sample["finite"],
        **score.details,
    }

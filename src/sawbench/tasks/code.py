"""What tasks that run generated code share: permission, the sandbox, pass@k."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sawbench.core.engine import Score
from sawbench.core.errors import UserError, illegal
from sawbench.core.progress import Progress, silent
from sawbench.core.records import Metric
from sawbench.scoring.code import Attempt
from sawbench.scoring.sandbox import Limits, Sandbox
from sawbench.stats import pass_at_k
from sawbench.tasks.benchmark import Benchmark, Sample, items_of, share

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

SAMPLES = (5, 10, 100)
"""The k of pass@k, beside 1, that are reported where there are as many samples."""
SANDBOXES = ("strict", "weak", "later")


@dataclass(frozen=True, kw_only=True)
class CodeBenchmark(Benchmark):
    """A benchmark whose answers are run.

    Args:
        allow_code_execution: must be set true: the model's code will be run.
        sandbox: strict, or weak where the machine has no namespaces (scoring.sandbox), or later: nothing is run here,
            answers stay unscored until ``rescore sandbox=strict`` judges them where it is possible.
        seconds: wall time of one program.
    """

    allow_code_execution: bool = False
    sandbox: Literal["strict", "weak", "later"] = "strict"
    seconds: float = 10.0

    metric: ClassVar[str] = "pass@1"
    output_bytes: ClassVar[int] = 1 << 20
    """What a program may print."""
    tests_in_data: ClassVar[bool] = False
    """Whether the tests lie in the data alone, so that judging needs the file that the answers were asked from."""

    def __post_init__(self) -> None:
        if self.sandbox not in SANDBOXES:
            raise illegal("task.sandbox", self.sandbox, SANDBOXES)

    @abstractmethod
    def attempt(self, sample: Sample) -> Attempt:
        """The code in a sample's answer."""

    @abstractmethod
    def judge(self, attempts: Sequence[Attempt], samples: Sequence[Sample], progress: Progress) -> list[Score]:
        """Run every attempt against its sample's tests."""

    def check(self, plan: "ModelPlan") -> None:
        """Also refuses to generate anything where the code could not be run in the end."""
        self._require_sandbox()
        super().check(plan)

    def _require_sandbox(self) -> None:
        if self.sandbox == "later":
            return
        if not self.allow_code_execution:
            raise UserError(f"task={self.name} runs code that the model writes: task.allow_code_execution=true permits "
                            f"it, in the sandbox that task.sandbox={self.sandbox} names")  # fmt: skip
        self.jail.check()

    @property
    def jail(self) -> Sandbox:
        return Sandbox(
            "weak" if self.sandbox == "weak" else "strict", Limits(seconds=self.seconds, file=self.output_bytes)
        )

    def score(self, samples: Sequence[Sample], progress: Progress = silent) -> list[Score]:
        self._require_sandbox()
        attempts = [self.attempt(sample) for sample in samples]
        if self.sandbox == "later":
            return [Score(None, attempt.code, attempt.reason or "not run yet") for attempt in attempts]
        return self.judge(attempts, samples, progress)

    def headline(self, samples: Sequence[Sample], scores: Sequence[Score]) -> tuple[Metric, ...]:
        """pass@1 and, with repeats, the unbiased pass@k that they allow."""
        counts: dict[str, list[float]] = {}
        for item, score in zip(items_of(samples), scores, strict=True):
            if score.value is not None:
                counts.setdefault(item, []).append(score.value)
        fewest = min(map(len, counts.values()), default=0)
        return (*super().headline(samples, scores), *(at_k(counts, k) for k in SAMPLES if k <= fewest))

    def conditions(self) -> dict[str, Any]:
        isolation = {"sandbox": "later"} if self.sandbox == "later" else self.jail.describe()
        return super().conditions() | isolation


def at_k(values: dict[str, list[float]], k: int) -> Metric:
    """pass@k over items, from each item's 0 and 1."""
    return share(f"pass@{k}", [pass_at_k(len(v), round(sum(v)), k) for v in values.values()], list(values))

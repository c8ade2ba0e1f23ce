"""What tasks that run generated code share: permission, the sandbox, pass@k."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sawbench.core.engine import Score
from sawbench.core.errors import UserError
from sawbench.core.records import Metric
from sawbench.scoring.sandbox import Limits, Mode, Sandbox
from sawbench.stats import pass_at_k
from sawbench.tasks.benchmark import Benchmark, Sample, items_of, share

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

SAMPLES = (5, 10, 100)
"""The k of pass@k, beside 1, that are reported where there are as many samples."""


@dataclass(frozen=True, kw_only=True)
class CodeBenchmark(Benchmark):
    """A benchmark whose answers are run.

    Args:
        allow_code_execution: must be set true: the model's code will be run.
        sandbox: strict, or weak where the machine has no namespaces (scoring.sandbox).
        seconds: wall time of one program.
    """

    allow_code_execution: bool = False
    sandbox: Mode = "strict"
    seconds: float = 10.0

    metric: ClassVar[str] = "pass@1"

    def check(self, plan: "ModelPlan") -> None:
        """Also refuses to generate anything where the code could not be run in the end."""
        if not self.allow_code_execution:
            raise UserError(f"task={self.name} runs code that the model writes: task.allow_code_execution=true permits "
                            f"it, in the sandbox that task.sandbox={self.sandbox} names")  # fmt: skip
        self.jail.check()
        super().check(plan)

    @property
    def jail(self) -> Sandbox:
        return Sandbox(self.sandbox, Limits(seconds=self.seconds))

    def headline(self, samples: Sequence[Sample], scores: Sequence[Score]) -> tuple[Metric, ...]:
        """pass@1 and, with repeats, the unbiased pass@k that they allow."""
        counts: dict[str, list[float]] = {}
        for item, score in zip(items_of(samples), scores, strict=True):
            if score.value is not None:
                counts.setdefault(item, []).append(score.value)
        fewest = min(map(len, counts.values()), default=0)
        return (*super().headline(samples, scores), *(at_k(counts, k) for k in SAMPLES if k <= fewest))

    def conditions(self) -> dict[str, Any]:
        return super().conditions() | self.jail.describe()


def at_k(values: dict[str, list[float]], k: int) -> Metric:
    """pass@k over items, from each item's 0 and 1."""
    return share(f"pass@{k}", [pass_at_k(len(v), round(sum(v)), k) for v in values.values()], list(values))

"""Several benchmarks in one cell: ``task=paper`` is the study's five."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sawbench.core.progress import Progress, silent
from sawbench.core.records import TaskResult
from sawbench.tasks.base import TaskContext
from sawbench.tasks.benchmark import Benchmark, Sample

if TYPE_CHECKING:
    from sawbench.models import ModelPlan


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Benchmarks by name, run in order. Permission to run code and the sandbox are handed on to them in its YAML."""

    name: str
    tasks: Mapping[str, Benchmark]
    allow_code_execution: bool = False
    sandbox: str = "strict"

    def check(self, plan: "ModelPlan") -> None:
        """All of them, so that the last does not refuse after the first has run for hours."""
        for task in self.tasks.values():
            task.check(plan)

    def inputs(self) -> Mapping[str, str]:
        return {f"{name}.{key}": value for name, task in self.tasks.items() for key, value in task.inputs().items()}

    def run(self, ctx: TaskContext) -> TaskResult:
        return joined({name: task.run(ctx) for name, task in self.tasks.items()})

    def result(self, samples: Sequence[Sample], progress: Progress = silent) -> TaskResult:
        """Every benchmark's result from its own samples."""
        return joined({name: task.result(samples, progress) for name, task in self.tasks.items()})

    def parts(self) -> Mapping[str, Benchmark]:
        """The benchmarks whose samples a cell of this task holds, by the name that the samples carry."""
        return {task.name: task for task in self.tasks.values()}


def joined(results: Mapping[str, TaskResult]) -> TaskResult:
    """One result: metrics as ``task/metric``, rows of the tables with the column ``benchmark``."""
    metrics = [replace(m, name=f"{name}/{m.name}") for name, result in results.items() for m in result.metrics]
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, result in results.items():
        for table, rows in result.tables.items():
            tables.setdefault(table, []).extend({"benchmark": name, **row} for row in rows)
    return TaskResult(tuple(metrics), tables)

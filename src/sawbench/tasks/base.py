"""What a task is given and what it must be able to say. A task never learns which method runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sawbench.core.progress import Progress, silent
from sawbench.core.records import TaskResult
from sawbench.core.samples import SampleSink

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

__all__ = ["Progress", "Task", "TaskContext", "silent"]


@dataclass(frozen=True)
class TaskContext:
    """One cell at work.

    Args:
        engine: the model with the method under test (core.engine.Engine; fidelity also uses core.replay.Replayer).
        reference: the same weights with K and V unquantized in the compute dtype; built on the first call.
        sink: the cell's samples.jsonl; a sample whose id is in ``sink.done`` need not be made again.
        progress: a bar for everything longer than two seconds.
        seed: of everything the task draws.
        model: the loaded model's identity (LoadedModel.identity): part of the key of whatever a task keeps.
        results: folder for what cells share (``reference/``: answers of the unquantized model).
    """

    engine: Any
    reference: Callable[[], Any]
    sink: SampleSink
    progress: Progress
    seed: int
    model: Mapping[str, Any]
    results: Path


class Task(Protocol):
    """A frozen dataclass that ``configs/task/<name>.yaml`` names by ``_target_``."""

    @property
    def name(self) -> str: ...

    def check(self, plan: "ModelPlan") -> None:
        """Refuse, with UserError and before weights load, whatever cannot run: missing data, a budget beyond the
        context, code without a sandbox."""
        ...

    def run(self, ctx: TaskContext) -> TaskResult: ...

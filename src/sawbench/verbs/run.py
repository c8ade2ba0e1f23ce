"""``run``: a method on a model with a task, beside its baseline; ``run -m``: many of them, each model loaded once.

Every cell lands as it ends. A cell that fails is a row with its error, the others go on, and the exit code is 1.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import DictConfig

from sawbench.core.errors import UserError
from sawbench.core.records import TaskResult
from sawbench.results import Cell, RunStore, write_tidy
from sawbench.verbs.job import Job
from sawbench.verbs.labels import BATCHING, group_label, row_label
from sawbench.verbs.loading import Shelf, out_of_memory
from sawbench.verbs.metrics import metrics_table

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """A row of the table at the end: a job's result, or why there is none."""

    group: str
    label: str
    run: str
    result: TaskResult | None = None
    error: str = ""


def main(config: DictConfig) -> int:
    return sweep([config])


def sweep(configs: Sequence[DictConfig]) -> int:
    """Run all cells and their baselines; 0, or 1 where one failed.

    Raises:
        UserError: a single configuration is refused. In a sweep that is a failed row.
    """
    store = RunStore(Path(configs[0].results))
    cells = [cell for config in configs for cell in parts(config)]
    jobs, outcomes = prepare(cells, alone=len(configs) == 1)
    shelf, files = Shelf(), []
    for job in sorted(jobs, key=lambda job: str(job.config.model)):
        outcomes.append(attempt(job, store, shelf, alone=len(cells) == 1))
        files = write_tidy(store)
    for text in report(outcomes):
        print(text)
    print(f"\nwritten: {store.runs}/ (a folder a run); {store.root}/: {', '.join(file.name for file in files)}")
    return int(any(outcome.error for outcome in outcomes))


def parts(config: DictConfig) -> list[DictConfig]:
    """A cell for each task where ``task`` is a suite of them (``task=paper``): the cells that running them one by one
    would give."""
    if "tasks" not in config.task:
        return [config]
    return [with_task(config, task) for task in config.task.tasks.values()]


def with_task(config: DictConfig, task: DictConfig) -> DictConfig:
    config = config.copy()
    config.task = task
    return config


def prepare(configs: Sequence[DictConfig], alone: bool) -> tuple[list[Job], list[Outcome]]:
    """Jobs, each model's and task's baseline first and once; and rows for what is refused (raised where ``alone``)."""
    jobs: dict[str, Job] = {}
    refused = []
    for config in configs:
        try:
            job = Job.of(config)
            wanted = [job] if config.baseline is None else [job.baseline(), job]
        except UserError as error:
            if alone:
                raise
            refused.append(Outcome(group_label(config, config.model.name), row_label(config), "", error=str(error)))
            continue
        for each in wanted:
            jobs.setdefault(str(each.identity()), each)
    return list(jobs.values()), refused


def attempt(job: Job, store: RunStore, shelf: Shelf, alone: bool) -> Outcome:
    """The cell's result, found or measured. What one cell raises ends that cell only."""
    cell = store.cell(job.identity())
    row = Outcome(group_label(job.config, job.plan.name), row_label(job.config), cell.run)
    try:
        return replace(row, result=found_or_measured(job, cell, shelf))
    except UserError as error:
        if alone:
            raise
        return replace(row, error=str(error))
    except Exception as error:  # a sweep goes on whatever one of its cells met; the row and the exit code tell of it
        return replace(row, error=explain(error, job))
    finally:
        cell.release()
        if job.device.type == "cuda":
            torch.cuda.empty_cache()


def explain(error: Exception, job: Job) -> str:
    """One line; an error that nobody foresaw leaves its traceback in the log too."""
    if out_of_memory(error):
        engine = job.config.engine
        option = next(key for key in BATCHING if key in engine)
        remedy = f"engine={engine.name} engine.{option}={max(engine[option] // 2, 1)}"
        return f"out of memory on {job.device}: try {remedy}; the samples made so far are kept"
    log.error("a run failed", exc_info=error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def found_or_measured(job: Job, cell: Cell, shelf: Shelf) -> TaskResult:
    """Raises UserError while another process holds the cell."""
    if not cell.finished and not cell.claim():
        raise UserError(f"{cell.run} is being measured by another process")
    if cell.finished:
        log.info("%s: found, nothing to run", cell.run)
        return cell.result()
    log.info("%s: %s on %s", cell.run, str(job.dtype).removeprefix("torch."), job.device)
    return job.measure(cell, shelf)


def report(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A table for each model and task, its rows in the order of the runs, and a line for each failure."""
    for group in dict.fromkeys(outcome.group for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.group == group]
        measured = {row.label: row.result.metrics for row in rows if row.result}
        yield f"\n{group}"
        if measured:
            yield metrics_table(measured)
        yield from (f"{row.label}: {row.run}" for row in rows if row.result)
        yield from (f"FAILED {row.label}: {row.error}" for row in rows if row.error)

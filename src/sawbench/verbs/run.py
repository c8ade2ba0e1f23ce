"""``run``: a method on a model with a task, beside its baseline; ``run -m``: many of them, each model loaded once.

Every cell lands as it ends. A cell that fails is a row with its error, the others go on, and the exit code is 1.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import DictConfig

from sawbench.core.errors import UserError
from sawbench.core.records import Metric, TaskResult
from sawbench.results import Cell, RunStore, write_tidy
from sawbench.verbs.job import Job
from sawbench.verbs.labels import BATCHING, group_label, row_label
from sawbench.verbs.loading import Shelf, out_of_memory
from sawbench.verbs.table import table

log = logging.getLogger(__name__)

SIDE_BY_SIDE = 3
"""Methods whose every metric still fits a screen, one column each."""


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
    jobs, outcomes = prepare(configs)
    shelf, files = Shelf(), []
    for job in sorted(jobs, key=lambda job: str(job.config.model)):
        outcomes.append(attempt(job, store, shelf, alone=len(configs) == 1))
        files = write_tidy(store)
    for text in report(outcomes):
        print(text)
    print(f"\nwritten: {store.runs}/ (a folder a run); {store.root}/: {', '.join(file.name for file in files)}")
    return int(any(outcome.error for outcome in outcomes))


def prepare(configs: Sequence[DictConfig]) -> tuple[list[Job], list[Outcome]]:
    """Jobs, each model's and task's baseline first and once; and rows for what is refused."""
    jobs: dict[str, Job] = {}
    refused = []
    for config in configs:
        try:
            job = Job.of(config)
            wanted = [job] if config.baseline is None else [job.baseline(), job]
        except UserError as error:
            if len(configs) == 1:
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
            yield side_by_side(measured) if len(measured) <= SIDE_BY_SIDE else one_below_another(measured)
        yield from (f"{row.label}: {row.run}" for row in rows if row.result)
        yield from (f"FAILED {row.label}: {row.error}" for row in rows if row.error)


def side_by_side(measured: Mapping[str, Sequence[Metric]]) -> str:
    """Every metric, a column for each method; a metric that a method lacks is a dash."""
    names = dict.fromkeys(heading(metric) for metrics in measured.values() for metric in metrics)
    columns = [{heading(metric): text_of(metric) for metric in metrics} for metrics in measured.values()]
    return table(["", *measured], [[name, *(column.get(name, "-") for column in columns)] for name in names])


def one_below_another(measured: Mapping[str, Sequence[Metric]]) -> str:
    """A row for each method, of the metrics that carry an interval and the bits stored; the CSV files have them all."""
    chosen = {
        label: {heading(m): text_of(m) for m in metrics if m.low is not None or m.name == "bits_per_value"}
        for label, metrics in measured.items()
    }
    names = list(dict.fromkeys(name for row in chosen.values() for name in row))
    return table(
        ["method", *names], [[label, *(row.get(name, "-") for name in names)] for label, row in chosen.items()]
    )


def heading(metric: Metric) -> str:
    return metric.name if metric.unit in ("", metric.name) else f"{metric.name} ({metric.unit})"


def text_of(metric: Metric) -> str:
    """Four digits, and the interval where there is one."""
    if metric.value is None:
        return "-"
    interval = "" if metric.low is None else f" [{metric.low:.4g}, {metric.high:.4g}]"
    return f"{metric.value:.4g}{interval}"

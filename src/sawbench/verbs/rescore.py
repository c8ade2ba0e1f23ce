"""``rescore``: verdicts on answers that are on disk, by today's rules; no model, no network, samples untouched."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sawbench.config import instantiate
from sawbench.core.errors import UserError
from sawbench.core.progress import bar
from sawbench.core.records import TaskResult
from sawbench.results import Cell, RunStore, write_tidy
from sawbench.results.samples import read_samples
from sawbench.tasks.benchmark import Benchmark
from sawbench.tasks.retrieval import Retrieval
from sawbench.verbs.metrics import metrics_table

log = logging.getLogger(__name__)

OPTIONS = ("sandbox", "allow_code_execution", "data")
"""What may differ from the run: a record names its local data by digest, and only LiveCodeBench's tests need them."""

NO_ANSWERS = "cannot be scored again: it holds no answers, or its task is none that scores them"
OURS = "sawbench.tasks."
"""What a recorded configuration may build: a results folder is data, and must not choose what is run."""


def main(config: DictConfig) -> int:
    """Rescore every cell that holds answers, or those that ``run`` names; 0, or 1 where one could not be."""
    store = RunStore(Path(config.results))
    cells = [cell for cell in store.cells() if config.run is None or cell.run.startswith(config.run)]
    if not cells:
        raise UserError(f"run={config.run} names no run in {store.runs}")
    options = {name: config[name] for name in OPTIONS if config[name] is not None}
    if "data" in options and not Path(options["data"]).is_file():
        raise UserError(f"data={options['data']} is not a file")
    results = {cell.run: rescored(cell, options) for cell in cells}
    found = {run: result for run, result in results.items() if isinstance(result, TaskResult)}
    if found:
        write_tidy(store)
        print(metrics_table({run: result.metrics for run, result in found.items()}))
    complaints = {run: result for run, result in results.items() if isinstance(result, str)}
    if config.run is not None:
        complaints |= {run: NO_ANSWERS for run, result in results.items() if result is None}
    elif not found and not complaints:
        print(f"nothing in {store.runs} to score again")
    for run, complaint in complaints.items():
        print(f"{run}: {complaint}")
    return int(bool(complaints))


def rescored(cell: Cell, options: Mapping[str, Any]) -> TaskResult | str | None:
    """The new result, written; why there is none; or None for a cell without answers to score."""
    task, samples = task_of(cell.identity), list(read_samples(cell.folder / "samples.jsonl").values())
    if task is None or not samples:
        return None
    recorded = getattr(task, "data", None)
    task = replace(task, **{name: value for name, value in options.items() if hasattr(task, name)})
    if refused := unscorable(task, recorded) or incomplete(task, samples):
        return refused
    if not cell.claim():
        return "is being measured by another process"
    try:
        result = merged(cell, task.result(samples, bar))
        cell.finish(result, replace=True)
        return result
    except UserError as error:
        return str(error)
    finally:
        cell.release()


def task_of(identity: Mapping[str, Any]) -> Any:
    """The task that a cell records, if it is one that scores answers."""
    recorded = identity.get("task")
    if not isinstance(recorded, Mapping) or not all(target.startswith(OURS) for target in targets(recorded)):
        return None
    task = instantiate(OmegaConf.create(dict(recorded)), "task")
    return task if isinstance(task, Benchmark | Retrieval) else None


def unscorable(task: Any, recorded: str | None) -> str:
    """Why a task cannot score, or nothing. ``recorded``: SHA-256 of the run's local data file, None without one."""
    if getattr(task, "sandbox", None) == "later":
        return "left its code to be run later: sandbox=strict or sandbox=weak runs it, allow_code_execution=true given"
    if recorded is None:
        return ""
    if task.data != recorded and sha256(Path(task.data).read_bytes()).hexdigest() != recorded:
        return f"data={task.data} is not the file that the run had (SHA-256 {recorded[:12]}...)"
    if task.data == recorded and getattr(task, "tests_in_data", False):
        return f"data=FILE is needed: the tests that the run had lie in a local file (SHA-256 {recorded[:12]}...)"
    return ""


def targets(node: Any) -> list[str]:
    """Every ``_target_`` in a configuration."""
    if isinstance(node, Mapping):
        own = [str(node["_target_"])] if "_target_" in node else []
        return own + [target for value in node.values() for target in targets(value)]
    return [target for value in node for target in targets(value)] if isinstance(node, list) else []


def incomplete(task: Benchmark | Retrieval, samples: Sequence[Mapping[str, Any]]) -> str:
    """What is missing, or nothing: a share of the answers must not pass for all of them."""
    made, wanted = task.counted(samples)
    missing = f"{task.name}: {made} of {'?' if wanted is None else wanted} answers; `run` makes the rest"
    return "" if made == wanted else missing


def merged(cell: Cell, result: TaskResult) -> TaskResult:
    """The new scores beside what the run measured of itself (bits stored, bytes), which no text can tell again."""
    if not cell.finished:
        return result
    before = cell.result()
    names = {metric.name for metric in result.metrics}
    kept = [metric for metric in before.metrics if metric.name not in names]
    return TaskResult((*result.metrics, *kept), {**before.tables, **result.tables})

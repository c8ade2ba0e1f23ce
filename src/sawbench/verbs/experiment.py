"""``experiment``: a table or figure of the paper, cell by cell: what it costs first, then what is missing of it.

Cells are those of ``run``, ``bench`` and ``kernels``, in the same results folder, so that whatever measured one of them
before has measured it here, and several processes may work on one experiment. A cell that fails is a row, the others go
on, and the exit code is 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from sawbench.config import compose
from sawbench.core.errors import UserError
from sawbench.results import RunStore
from sawbench.results.tidy import read_csv
from sawbench.throughput.ledger import Ledger
from sawbench.throughput.measures import FILES
from sawbench.verbs import bench, bench_cells, kernels, run
from sawbench.verbs.experiment_cells import Cell, cells_of, experiment, folder
from sawbench.verbs.experiment_cost import assumptions, seconds
from sawbench.verbs.job import Job
from sawbench.verbs.table import table

HOUR = 3600.0


@dataclass(frozen=True)
class Planned:
    """A cell with its configuration, whether it is in the results, and its seconds (None: not on this card)."""

    cell: Cell
    config: DictConfig
    there: bool
    seconds: float | None

    @property
    def missing(self) -> bool:
        return not self.there and self.seconds is not None

    @property
    def what(self) -> str:
        """The task, or the load with its levels of concurrency."""
        levels = OmegaConf.select(self.config, "load.concurrency")
        several = ",".join(map(str, levels if OmegaConf.is_list(levels) else [levels]))
        return f"{self.cell.what} x {several}" if levels else self.cell.what


def main(config: DictConfig) -> int:
    """0, or 1 where a cell failed or does not fit the card.

    Raises:
        UserError: there is no such experiment, or an option of its cells is illegal.
    """
    planned = [plan(cell, config) for cell in cells_of(config)]
    print(described(planned, config), flush=True)
    if config.dry:
        return 0
    failed = [execute(group, config) for group in groups(planned)]
    refused = list(refusals(planned, config))
    print("\n".join(["", f"{config.name}: results in {folder(config)}/, tables by `sawbench report`", *refused]))
    return int(any(failed) or bool(refused))


def plan(cell: Cell, config: DictConfig) -> Planned:
    composed = compose(cell.verb, cell.words)
    try:
        cost = seconds(cell.verb, composed, config.gpu)
    except UserError:  # the verb will refuse it too, and make a row of it
        cost = 0.0
    return Planned(cell, composed, THERE[cell.verb](composed), cost)


def run_there(config: DictConfig) -> bool:
    """Whether the cell of ``run`` is finished. Its folder's name is a hash that takes the model's weights at hand to
    tell: nothing is looked up where no finished cell has the same names."""
    store = RunStore(Path(config.results))
    names = "-".join((config.model.name, config.method.name, config.task.name))
    if not any(store.runs.glob(f"{names}-*/metrics.json")):
        return False
    try:
        return store.cell(Job.of(config).identity()).finished
    except UserError:
        return False


def bench_there(config: DictConfig) -> bool:
    """Whether every concurrency of the load is measured on this machine."""
    ledger = Ledger(Path(config.results) / "throughput" / f"{FILES[config.measure]}.csv")
    names = {"model": config.model.name, "method": config.method.name}
    if not any(names.items() <= row.items() for row in read_csv(ledger.path)):
        return False
    try:
        return all(ledger.done(cell.run) for cell in bench_cells.cells_of(config, config))
    except UserError:
        return False


def kernels_there(config: DictConfig) -> bool:
    """Whether each family has rows; ``kernels`` itself measures them anew."""
    rows = read_csv(Path(config.results) / "kernels" / f"{config.shapes}.csv")
    return all(any(row["family"].startswith(family) for row in rows) for family in config.families)


THERE: dict[str, Callable[[DictConfig], bool]] = {"run": run_there, "bench": bench_there, "kernels": kernels_there}


def described(planned: Sequence[Planned], config: DictConfig) -> str:
    """A line for each model and method: its cells, how many of them are there, and the hours of the rest."""
    lines = [
        _line(list(group)) for _, group in groupby(planned, key=lambda p: (p.cell.verb, p.cell.model, p.cell.method))
    ]
    total = sum(each.seconds or 0.0 for each in planned if each.missing) / HOUR
    head = ["verb", "model", "method", "cells", "in results", "GPU hours"]
    missing = sum(each.missing for each in planned)
    return "\n".join(
        [
            str(experiment(config.name).about),
            "",
            table(head, lines),
            "",
            f"{missing} of {len(planned)} cells to run on this card: {total:.3g} GPU hours. {assumptions(config.gpu)}",
        ]
    )


def _line(group: Sequence[Planned]) -> list[str]:
    cell, there = group[0].cell, sum(each.there for each in group)
    fits = all(each.seconds is not None for each in group)
    hours = sum(each.seconds or 0.0 for each in group if each.missing) / HOUR
    cost = f"{hours:.2g}" if fits else "does not fit"
    return [
        cell.verb,
        cell.model,
        cell.method,
        ", ".join(each.what for each in group),
        f"{there} of {len(group)}",
        cost,
    ]


def groups(planned: Sequence[Planned]) -> Iterator[list[Planned]]:
    """Missing cells by what one call of a verb takes together: cells of ``bench`` that go to one file."""

    def kind(each: Planned) -> str:
        return f"{each.cell.verb} {each.config.get('measure', '')}"

    missing = [each for each in planned if each.missing]
    for name in dict.fromkeys(map(kind, missing)):
        yield [each for each in missing if kind(each) == name]


def execute(group: Sequence[Planned], config: DictConfig) -> int:
    """Run cells of one verb together; what it refuses is a row."""
    verb = group[0].cell.verb
    try:
        if verb == "kernels":
            return max(_kernels(each.config, config.smoke) for each in group)
        return (run if verb == "run" else bench).sweep([each.config for each in group])
    except UserError as error:
        print(f"FAILED {verb}: {error}")
        return 1


def _kernels(config: DictConfig, smoke: bool) -> int:
    """A smoke run without a GPU reads the options and leaves it at that."""
    if smoke and not torch.cuda.is_available():
        kernels.choose(config)
        print("\nkernels: left out, since they are timed on a CUDA device and there is none")
        return 0
    return kernels.main(config)


def refusals(planned: Sequence[Planned], config: DictConfig) -> Iterator[str]:
    """A line for each model that the card cannot hold."""
    models = dict.fromkeys(each.cell.model for each in planned if not each.there and each.seconds is None)
    for model in models:
        count = sum(each.cell.model == model for each in planned)
        yield f"FAILED {model}: {count} cells not run, one {config.gpu.name} does not hold weights and a request of it"

"""``bench``: loads on the paged engine, methods side by side, each model's weights loaded once.

Every cell lands in results/throughput/ as it ends (files and columns: ``sawbench.throughput.measures``); a rerun
measures what is missing or failed. A cell that fails is a row with its error, the others go on, and the exit code is 1.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from sawbench.core.errors import UserError
from sawbench.throughput.bench import Row
from sawbench.throughput.ledger import Ledger, provenance
from sawbench.throughput.measures import FILES
from sawbench.verbs.bench_cells import Cell, cells_of
from sawbench.verbs.bench_engine import Bench
from sawbench.verbs.bench_table import estimates, results
from sawbench.verbs.loading import out_of_memory

log = logging.getLogger(__name__)


def main(config: DictConfig) -> int:
    return sweep([config])


def sweep(configs: Sequence[DictConfig], bench: Bench | None = None, arguments: Sequence[str] | None = None) -> int:
    """Run all cells; 0, or 1 where one failed. ``bench`` may come from an earlier sweep, with its model and engine.

    Raises:
        UserError: a single configuration is refused. Among several that is a failed row.
    """
    cells, refused = prepare(configs)
    if any(config.estimate for config in configs):
        print(estimates(cells))
        return int(bool(refused))
    ledger = Ledger(Path(configs[0].results) / "throughput" / f"{FILES[configs[0].measure]}.csv")
    for row in refused:
        ledger.write(row["run"], [row])
    rows = refused + Study(cells, ledger, bench or Bench(), arguments).run()
    print(results(rows))
    print(f"\nwritten: {ledger.path}")
    return int(any(row.get("error") for row in rows))


def prepare(configs: Sequence[DictConfig]) -> tuple[list[Cell], list[Row]]:
    """Cells, those of one engine together; and rows for what is refused before weights load."""
    cells: list[Cell] = []
    refused: list[Row] = []
    for config in configs:
        try:
            cells += cells_of(config, configs[0])
        except UserError as error:
            if len(configs) == 1:
                raise
            names = {"model": config.model.name, "method": config.method.name, "load": config.load.name}
            refused.append({**names, "run": "-".join(("refused", *names.values())), "error": str(error)})
    order = {cell.engine_key: at for at, cell in reversed(list(enumerate(cells)))}
    return sorted(cells, key=lambda cell: (str(cell.plan.identity), order[cell.engine_key])), refused


@dataclass
class Study:
    """The run of many cells. ``arguments``: the command to record in place of this process's own."""

    cells: Sequence[Cell]
    ledger: Ledger
    bench: Bench
    arguments: Sequence[str] | None = None

    def run(self) -> list[Row]:
        """The rows of every cell, measured or found."""
        return [row for cell in self.cells for row in self._rows(cell)]

    def _rows(self, cell: Cell) -> list[Row]:
        with self.ledger.claim(cell.run) as mine:
            found = self.ledger.done(cell.run)
            if found:
                log.info("%s: found, nothing to run", cell.label)
                return found
            if not mine:
                return [{**cell.names, "error": "being measured by another process"}]
            return self._measured(cell)

    def _measured(self, cell: Cell) -> list[Row]:
        common = {**cell.names, **provenance(self.arguments), "error": ""}
        try:
            rows = [{**common, **row} for row in self.bench.measure(cell, self._text(cell))]
        except UserError as error:
            rows = [{**common, "error": str(error)}]
        except Exception as error:  # a sweep goes on whatever one cell met; the row and the exit code tell of it
            rows = [{**common, "error": explain(error)}]
        self.ledger.write(cell.run, rows)
        return rows

    def _text(self, cell: Cell) -> str:
        at = self.cells.index(cell)
        left = sum(other.estimate() or 0.0 for other in self.cells[at + 1 :])
        return f"{cell.label} [{at + 1}/{len(self.cells)}, then {left:.0f} s or more]"


def explain(error: Exception) -> str:
    """One line; an error that nobody foresaw leaves its traceback in the log too."""
    if out_of_memory(error):
        return "out of memory: lower engine.kv_bytes or engine.gpu_memory"
    log.error("a cell failed", exc_info=error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]

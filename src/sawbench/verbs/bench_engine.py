"""The engine that cells are measured on: one at a time, kept as long as the next cell wants the same."""

import gc
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sawbench.core.progress import bar
from sawbench.engine.build import build_engine
from sawbench.engine.calibrate import artifact_for
from sawbench.models import LoadedModel
from sawbench.throughput.bench import Row
from sawbench.throughput.device import measure_rates
from sawbench.throughput.measures import ON_ENGINE, resident_bytes
from sawbench.throughput.peers import generate_batch
from sawbench.throughput.steps import compare_steps
from sawbench.verbs.bench_cells import Cell
from sawbench.verbs.loading import Shelf

log = logging.getLogger(__name__)


@dataclass
class Bench:
    """Measures cells, whatever their measure. Holds one model and one engine."""

    shelf: Shelf = field(default_factory=Shelf)
    _key: Any = None
    _engine: Any = None

    def measure(self, cell: Cell, text: str) -> list[Row]:
        """Rows of one cell; the first one loads the model and measures the card's rates."""
        loaded = self.shelf.load(cell.plan, cell.device, cell.dtype)
        rates = measure_rates(cell.device, cell.dtype).rates
        if cell.measure in ("peer", "overhead"):
            self.close()
        if cell.measure == "peer":
            return [generate_batch(loaded, cell.load, cell.config.seed)]
        if cell.measure == "overhead":
            return [self._overhead(cell, loaded)]
        return ON_ENGINE[cell.measure](self._ready(cell, loaded), cell.load, rates, cell.config.seed, bar, text)

    def _ready(self, cell: Cell, loaded: LoadedModel) -> Any:
        key = (loaded.identity, loaded.model.dtype, cell.engine_key)
        if key != self._key:
            self.close()
            self._engine, self._key = engine_of(cell, loaded), key
        return self._engine

    def _overhead(self, cell: Cell, loaded: LoadedModel) -> Row:
        assert cell.base is not None
        a, b = (engine_of(each, loaded) for each in (cell.base, cell))
        return {"base": cell.base.method.name, **compare_steps(a, b, cell.load.concurrency, cell.load.input_tokens)}

    def close(self) -> None:
        """Give the pool back before the next engine asks for its own."""
        self._engine = self._key = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def engine_of(cell: Cell, loaded: LoadedModel) -> Any:
    """The cell's engine; for decode steps alone its pool holds just their batch."""
    config = cell.config.copy()
    if cell.measure != "load":
        config.engine.kv_bytes = resident_bytes(cell.cost.token_bytes, cell.load, config.engine.page_size)
    log.info("%s: building its engine", cell.label)
    tensors = artifact_for(cell.method, loaded, config.calibration, Path(config.results))
    return build_engine(config.engine, loaded, cell.method, tensors)

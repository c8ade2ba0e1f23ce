"""What ``bench`` can measure: each is a function to rows, and the CSV file that they go to.

* load -> bench.csv: a load to its end, columns in ``sawbench.throughput.bench``;
* step -> steps.csv: a decode step beside its floor: ``batch context steps step_ms step_p10_ms step_p90_ms floor_ms
  over_floor``;
* split -> split.csv: where its time goes, a row a class: ``row`` (Table 4's names, Sampling, Host, TOTAL), ``value``
  (ns of one layer in one step, Table 4's unit), ``step_us``;
* overhead -> overhead.csv: steps of ``base`` (A) and ``method`` (B), interleaved: ``step_a_ms step_b_ms overhead_pct``
  with its 95 % interval ``low_pct high_pct``;
* peer -> bench.csv too, so that its ratio to BF16 stands beside the others': the load through transformers'
  generate_batch, with ``method`` generate_batch and ``wall_s output_tokens_total output_tps`` alone.

A step's ``batch`` is the load's concurrency and its ``context`` the load's input tokens. All rows carry the columns
that name the cell and say where it ran, and ``error``.
"""

from collections.abc import Callable
from typing import Any

from sawbench.core.progress import Progress
from sawbench.throughput.bench import Row, run_cell
from sawbench.throughput.loads import Load
from sawbench.throughput.profile import step_split
from sawbench.throughput.roofline import Rates
from sawbench.throughput.steps import REPEATS, SETTLING, STEPS, decode_step

FILES = {"load": "bench", "step": "steps", "split": "split", "overhead": "overhead", "peer": "bench"}
RESIDENT_STEPS = REPEATS * (SETTLING + STEPS) + 8
"""Steps that a batch of decode steps may take in all, whatever is measured."""

Measure = Callable[[Any, Load, Rates, int, Progress, str], list[Row]]


def load(engine: Any, load: Load, rates: Rates, seed: int, progress: Progress, text: str) -> list[Row]:
    return [run_cell(engine, load, rates, seed=seed, progress=progress, text=text)]


def step(engine: Any, load: Load, rates: Rates, seed: int, progress: Progress, text: str) -> list[Row]:
    return [decode_step(engine, load.concurrency, load.input_tokens, rates)]


def split(engine: Any, load: Load, rates: Rates, seed: int, progress: Progress, text: str) -> list[Row]:
    return step_split(engine, load.concurrency, load.input_tokens)


ON_ENGINE: dict[str, Measure] = {"load": load, "step": step, "split": split}


def resident_bytes(token_bytes: float, load: Load, page_size: int) -> int:
    """A pool that holds the load's batch of decode steps to its last one, page 0 beside."""
    pages = -(-(load.input_tokens + RESIDENT_STEPS) // page_size)
    return round((load.concurrency * pages + 2) * page_size * token_bytes)

"""Decode steps alone: their time beside their floor, and two engines' steps against each other, interleaved."""

import statistics
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sawbench.engine.paged.engine import Landed
from sawbench.throughput.costs import cost_of_engine
from sawbench.throughput.device import synchronise
from sawbench.throughput.loads import Load
from sawbench.throughput.roofline import Rates, step_floor
from sawbench.throughput.warmup import resident

SETTLING = 4
"""Steps of a block before its clock runs: the one in flight from before, and the pipeline's filling."""
STEPS, REPEATS = 200, 5
"""Of an interleaved comparison: steps of a block, and blocks of each engine."""
RESAMPLES = 4000


class Decoding:
    """A batch of one engine that decodes on and on from ``context`` stored tokens a sequence."""

    def __init__(self, engine: Any, batch: int, context: int, most_steps: int) -> None:
        self.engine, self.device = engine, engine.runner.rows.device
        load = Load("decode", context, most_steps + 2, batch, batch)
        load.check(engine.max_length, engine.max_running)
        requests = list(load.prompts(engine.loaded.model.config.vocab_size, seed=0))
        self.steps: Iterator[Landed] = resident(engine, requests)
        next(self.steps)  # admits all, and captures and compiles what the next steps need
        next(self.steps)

    def times(self, steps: int) -> list[float]:
        """Seconds from one step's tokens on the host to the next one's, ``steps`` of them after SETTLING."""
        synchronise(self.device)
        landed = [next(self.steps) for _ in range(SETTLING + steps)]
        stamps = [step.time for step in landed[SETTLING - 1 :]]
        synchronise(self.device)
        return [after - before for before, after in pairwise(stamps)]

    def close(self) -> None:
        """Give the batch's pages back."""
        self.steps.close()  # type: ignore[attr-defined]


def decode_step(engine: Any, batch: int, context: int, rates: Rates, steps: int = 100) -> dict[str, Any]:
    """Median step of ``batch`` sequences at ``context`` tokens, with the time that its bytes alone would take.

    ``over_floor`` is step over floor: 1 is a step that does nothing but read weights and cache.
    """
    decoding = Decoding(engine, batch, context, SETTLING + steps + 2)
    times = decoding.times(steps)
    decoding.close()
    middle = context + SETTLING + steps // 2
    floor = step_floor(cost_of_engine(engine), batch, middle, rates)
    median = statistics.median(times)
    return {
        "batch": batch,
        "context": context,
        "steps": steps,
        "step_ms": 1e3 * median,
        "step_p10_ms": 1e3 * float(np.percentile(times, 10)),
        "step_p90_ms": 1e3 * float(np.percentile(times, 90)),
        "floor_ms": 1e3 * floor,
        "over_floor": median / floor,
    }


def compare_steps(
    engine_a: Any, engine_b: Any, batch: int, context: int, *, steps: int = STEPS, repeats: int = REPEATS, seed: int = 0
) -> dict[str, Any]:
    """Blocks of ``steps`` decode steps, A B A B ..., ``repeats`` of each; what B costs over A in per cent.

    The two decode the same contexts in turn, so that the card's drift falls on both. Each pair of blocks gives the
    ratio of its median steps; ``overhead_pct`` is the median pair's, ``low`` and ``high`` bound it at 95 % by a
    bootstrap that draws pairs and, within each, steps. Two engines of one method show the noise alone.
    """
    most = repeats * (SETTLING + steps) + 2
    a, b = (Decoding(engine, batch, context, most) for engine in (engine_a, engine_b))
    blocks = np.array([[a.times(steps), b.times(steps)] for _ in range(repeats)])
    a.close()
    b.close()
    low, high = np.percentile(_resampled(blocks, seed), (2.5, 97.5))
    return {
        "batch": batch,
        "context": context,
        "steps": steps,
        "repeats": repeats,
        "step_a_ms": 1e3 * float(np.median(blocks[:, 0])),
        "step_b_ms": 1e3 * float(np.median(blocks[:, 1])),
        "overhead_pct": _overhead(blocks),
        "low_pct": float(low),
        "high_pct": float(high),
    }


def _overhead(blocks: NDArray[np.float64]) -> float:
    """Per cent by which B's steps exceed A's in ``blocks`` [repeats, 2, steps]: the median pair."""
    medians = np.median(blocks, axis=-1)
    return 100 * float(np.median(medians[:, 1] / medians[:, 0]) - 1)


def _resampled(blocks: NDArray[np.float64], seed: int) -> list[float]:
    rng, (repeats, _, steps) = np.random.default_rng(seed), blocks.shape
    found = []
    for _ in range(RESAMPLES):
        pairs = blocks[rng.integers(repeats, size=repeats)]
        draws = rng.integers(steps, size=pairs.shape)
        found.append(_overhead(np.take_along_axis(pairs, draws, axis=-1)))
    return found

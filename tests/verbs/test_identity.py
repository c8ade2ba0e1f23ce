"""Which commands are one cell: what a choice means is hashed, not that it was left to the engine."""

from sawbench.config import compose
from sawbench.engine.paged.build import CHUNKS
from sawbench.verbs.bench_cells import cells_of
from sawbench.verbs.job import Job

TINY = ("model=tiny", "device=cpu", "engine=paged")


def test_a_chunk_that_was_chosen_and_the_same_one_given_are_one_run() -> None:
    asked = [(), (f"engine.chunk={CHUNKS[0]}",), ("engine.chunk=8",)]
    auto, given, other = [Job.of(compose("run", [*TINY, "task=passkey", *words])).identity() for words in asked]
    assert auto == given
    assert auto != other


def test_a_chunk_that_was_chosen_and_the_same_one_given_are_one_cell_of_a_benchmark() -> None:
    load = ("load=d256_1024", "load.concurrency=2", "load.requests=2", "load.input_tokens=8", "load.output_tokens=4")
    asked = [compose("bench", [*TINY, *load, f"engine.chunk={chunk}"]) for chunk in ("auto", CHUNKS[0], 8)]
    (auto,), (given,), (other,) = [cells_of(config, config) for config in asked]
    assert auto.run == given.run
    assert auto.run != other.run

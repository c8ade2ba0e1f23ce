"""One cell of the throughput study: a load on an engine, measured, and its row.

results/throughput/bench.csv, one row a cell (written by ``sawbench.throughput.ledger``):

* what: ``model``, ``method``, ``options`` (of the method, as typed, where they are not as shipped), ``engine``,
  ``attention``, ``run`` (hash of all that can change the numbers), ``load`` (``d16384_1024``), ``input_tokens``,
  ``output_tokens``, ``concurrency``, ``requests``, ``weights`` (random or pretrained), ``gpus`` (cards used, 1);
* metrics, by the formulas in ``sawbench.throughput.metrics``: ``output_tps``, ``output_tps_request``, ``ttft_ms``,
  ``tpot_ms``, ``e2e_s`` (each a mean, with ``_p50 _p75 _p90 _p99`` beside it), ``wall_s``, ``output_tokens_total``,
  ``admitted_mean``, ``admitted_max``, ``preemptions``, ``pool_use_mean``, ``pool_use_max``;
* memory: ``kv_bytes_per_token``, ``pool_bytes`` (pages times bytes a page), ``peak_bytes`` (of the process);
* bound: ``bound_s`` and ``bound_tps`` by ``sawbench.throughput.roofline`` with ``read_rate`` and ``matmul_rate``
  measured in the same process, ``of_bound`` = ``output_tps`` / ``bound_tps``;
* where: ``page_size``, ``chunk``, ``max_running``, ``device``, ``date``, ``commit``, ``dirty``, ``versions``,
  ``command``;
* ``error``: why there are no metrics; empty where there are.
"""

import time
from typing import Any

from sawbench.core.progress import Progress, silent
from sawbench.throughput.costs import cost_of_engine
from sawbench.throughput.device import memory, reset_memory, synchronise
from sawbench.throughput.loads import Load
from sawbench.throughput.metrics import Recorder
from sawbench.throughput.roofline import Bound, Rates, roofline
from sawbench.throughput.warmup import warm_up

Row = dict[str, Any]


def run_cell(engine: Any, load: Load, rates: Rates, *, seed: int = 0, progress: Progress = silent, text: str = "",
             warm: bool = True) -> Row:  # fmt: skip
    """Run ``load`` on a paged engine and return its row's metrics, memory and bound; compiles and captures first.

    Raises:
        UserError: the load does not fit the model's context, the engine's rows or its pool.
    """
    load.check(engine.max_length, engine.max_running)
    device = engine.runner.rows.device
    if warm:
        warm_up(engine, load, seed)
    requests = list(load.prompts(engine.loaded.model.config.vocab_size, seed))
    reset_memory(device)
    synchronise(device)
    recorder = Recorder([r.id for r in requests], load.concurrency, time.perf_counter())
    counted = recorder.watch(engine.run(requests, load.concurrency), engine)
    for _ in progress(counted, load.requests * load.output_tokens, text):
        pass
    synchronise(device)
    return {
        **described(load),
        **recorder.summary(),
        "preemptions": engine.scheduler.preemptions,
        **footprint(engine),
        **memory(device),
        **bounded(recorder.summary()["output_tps"], engine, load, rates),
    }


def described(load: Load) -> Row:
    """The columns that name a load."""
    return {
        "load": load.name,
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "concurrency": load.concurrency,
        "requests": load.requests,
    }


def footprint(engine: Any) -> Row:
    said = engine.describe()
    return {
        "engine": said["engine"],
        "attention": said["attention"],
        "kv_bytes_per_token": engine.cache.page_bytes // engine.cache.page_size,
        "pool_bytes": engine.pool_bytes,
        "page_size": engine.cache.page_size,
        "chunk": engine.chunk,
        "max_running": engine.max_running,
        "gpus": 1,
    }


def bounded(output_tps: float, engine: Any, load: Load, rates: Rates) -> Row:
    """The roofline of what ran, and how near it came."""
    bound: Bound | None = roofline(cost_of_engine(engine), load, rates, engine.pool_bytes)
    if bound is None:
        return {}
    return {
        "bound_s": bound.seconds,
        "bound_tps": bound.output_tps,
        "of_bound": output_tps / bound.output_tps,
        "read_rate": rates.read,
        "matmul_rate": rates.matmul,
    }

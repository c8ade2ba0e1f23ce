"""What must not happen under the clock: compilation, autotuning, graph capture, the allocator's first growth."""

from collections.abc import Iterator, Sequence
from typing import Any

from sawbench.core.engine import Request
from sawbench.engine.paged.engine import Landed
from sawbench.engine.paged.scheduler import Scheduler
from sawbench.throughput.device import synchronise
from sawbench.throughput.loads import Load


def warm_up(engine: Any, load: Load, seed: int = 0) -> None:
    """Run whole prompts of the load, one more than a step takes, so that some are computed beside decodes; then decode
    at every batch size up to its concurrency."""
    vocabulary = engine.loaded.model.config.vocab_size
    prompts = load.cut(min(engine.chunk // load.input_tokens + 2, load.requests), 4)
    for _ in engine.run(list(prompts.prompts(vocabulary, seed + 1))):
        pass
    width = min(load.concurrency, load.requests)
    short = Load("warm-up", min(load.input_tokens, 16), 2, width, width)
    staggered = [lengthened(r, i // 2) for i, r in enumerate(short.prompts(vocabulary, seed + 1))]
    for _ in engine.run(staggered):
        pass
    synchronise(engine.runner.rows.device)


def lengthened(request: Request, tokens: int) -> Request:
    """``request`` with so many more tokens to write."""
    sampling = request.sampling
    return Request(request.id, request.prompt, type(sampling)(sampling.max_new_tokens + tokens, ignore_eos=True))


def resident(engine: Any, requests: Sequence[Request]) -> Iterator[Landed]:
    """Run ``requests`` as if all but the last token of their prompts were in the cache already.

    What a decode step costs at a context does not depend on what it attends to, so that no prompt need be computed to
    time one: the pages hold random codes. The first step admits all requests, every later one decodes all.
    """
    fill(engine.cache)
    scheduler = Scheduler(engine.blocks, len(requests), max(engine.chunk, len(requests)))
    for request in requests:
        sequence = scheduler.add(request)
        sequence.cached = len(request.prompt) - 1
    return engine.drive(scheduler)


def fill(cache: Any) -> None:
    """Random codes in every page; scales of zero and centroid 0, so that whatever is read is finite and in range."""
    for planes in cache.planes:
        for name, plane in planes.items():
            if not name.endswith((".codes", ".raw")):
                plane.zero_()
            elif plane.dtype.is_floating_point:
                plane.normal_()
            else:
                plane.random_(0, 256)

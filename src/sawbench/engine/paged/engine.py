"""The paged engine: continuous batching over a Hugging Face model with a quantized paged cache.

The host plans and launches step n + 1 while the device runs step n, whose tokens it reads only then: a sequence that
turns out to have ended runs one step too many, and what that step draws is dropped.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from sawbench.attention.paged import PagedCache
from sawbench.cache.pages import BlockManager
from sawbench.core.engine import CacheReport, Completion, LogLikelihood, Request, Sampling
from sawbench.core.replay import Replay
from sawbench.engine.paged.runner import Runner
from sawbench.engine.paged.scheduler import Chunk, Scheduler, Step
from sawbench.engine.paged.scheduler import Sequence as Running
from sawbench.engine.sampling import text_until
from sawbench.engine.scores import score
from sawbench.engine.steps import completion
from sawbench.models import LoadedModel

STOP_TAIL = 64  # newest tokens whose text is searched for a stop string


@dataclass(frozen=True)
class Landed:
    """A step whose tokens the host has seen: what a benchmark measures. ``time`` is perf_counter's, in seconds."""

    time: float
    tokens: tuple[tuple[Running, int], ...]
    finished: tuple[Running, ...]
    step: Step


@dataclass
class _Flight:
    step: Step
    sampled: tuple[Running, ...]
    tokens: Tensor
    finite: Tensor
    event: Any

    def wait(self) -> tuple[list[int], list[bool]]:
        if self.event is not None:
            self.event.synchronize()
        return self.tokens.tolist(), self.finite.tolist()


class PagedEngine:
    """One loaded model and one pool of pages; ``runner`` decides how a step runs (eagerly, or from CUDA graphs)."""

    def __init__(
        self,
        loaded: LoadedModel,
        cache: PagedCache,
        runner: Runner,
        *,
        max_running: int,
        chunk: int,
        values_per_token: int,
        shared_bytes: int = 0,
    ) -> None:
        self.loaded, self.cache, self.runner = loaded, cache, runner
        self.tokenizer, self.max_length = loaded.tokenizer, loaded.max_length
        self.max_running, self.chunk = max_running, chunk
        self.values_per_token, self.shared_bytes = values_per_token, shared_bytes
        self.blocks = BlockManager(cache.pages, cache.page_size)
        self.most_tokens = 0
        self.scheduler = Scheduler(self.blocks, max_running, chunk)

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Completions in the order in which they end."""
        for landed in self.run(requests):
            yield from (self._completion(sequence) for sequence in landed.finished)

    def run(self, requests: Sequence[Request], concurrency: int | None = None) -> Iterator[Landed]:
        """Run all requests, at most ``concurrency`` at a time (default: as many as the engine admits); yield each step
        as its tokens land.

        Raises:
            UserError: a request cannot fit the pool or the model's context.
        """
        self.runner.rows.reserve(
            max((r.sampling.max_new_tokens for r in requests if r.sampling.temperature > 0), default=1)
        )
        scheduler = Scheduler(self.blocks, min(concurrency or self.max_running, self.max_running), self.chunk)
        for request in requests:
            scheduler.add(request)
        yield from self.drive(scheduler)

    def drive(self, scheduler: Scheduler) -> Iterator[Landed]:
        """Run what ``scheduler``, over this engine's ``blocks``, holds; yield each step as its tokens land."""
        self.scheduler = scheduler
        flight: _Flight | None = None
        try:
            while scheduler.busy:
                step = scheduler.plan()
                launched = self._launch(step) if step else None
                if flight is not None:
                    yield self._land(flight)
                flight = launched
        finally:
            for sequence in [*scheduler.running]:  # a consumer that stops early leaves no page behind
                scheduler.finish(sequence)

    def _launch(self, step: Step) -> _Flight:
        tokens, finite = self.runner.run(step)
        sampled = step.sampled
        self.scheduler.launched(step)
        if tokens.device.type == "cpu":
            return _Flight(step, sampled, tokens, finite, None)
        sent = _to_host(tokens), _to_host(finite)
        event = torch.cuda.Event()
        event.record()
        return _Flight(step, sampled, sent[0], sent[1], event)

    def _land(self, flight: _Flight) -> Landed:
        tokens, finite = flight.wait()
        now = time.perf_counter()
        self.most_tokens = max(self.most_tokens, sum(s.cached for s in self.scheduler.running))
        finished = []
        for sequence, token, ok in zip(flight.sampled, tokens, finite, strict=True):
            was_done = sequence.done
            self.scheduler.landed(sequence, token)
            if was_done:
                continue
            sequence.finite &= ok
            if self._ended(sequence, token):
                self.scheduler.finish(sequence)
                finished.append(sequence)
        return Landed(now, tuple(zip(flight.sampled, tokens, strict=True)), tuple(finished), flight.step)

    def _ended(self, sequence: Running, token: int) -> bool:
        sampling = sequence.request.sampling
        if len(sequence.generated) >= sampling.max_new_tokens:
            return True
        if not sampling.ignore_eos and token in self.loaded.eos_ids:
            return True
        if not sampling.stop:
            return False
        return text_until(self.tokenizer.decode(sequence.generated[-STOP_TAIL:]), sampling.stop)[1]

    def _completion(self, sequence: Running) -> Completion:
        return completion(sequence.request, sequence.generated, self.tokenizer, self.loaded.eos_ids, sequence.finite)

    def loglikelihood(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[LogLikelihood]:
        """Scores of continuations; an empty context is one end-of-text token."""
        items = [Replay(str(i), tuple(c) or self.loaded.eos_ids[:1], tuple(a)) for i, (c, a) in enumerate(pairs)]
        return [score(logits, item.answer) for logits, item in zip(self.replay(items), items, strict=True)]

    def replay(self, items: Sequence[Replay], chunk: int | None = None) -> Iterator[Tensor]:
        """Teacher-forced logits, float32 or wider [len(answer), V], in order, one item at a time."""
        for item in items:
            yield self._replay(item, chunk or self.chunk)

    @torch.inference_mode()
    def _replay(self, item: Replay, size: int) -> Tensor:
        sequence = Running(Request(item.id, item.prompt + item.answer, Sampling(1)), row=0)
        total, first = sequence.planned, len(item.prompt) - 1
        sequence.pages = self.blocks.take(self.blocks.needed(total))
        parts = []
        try:
            for start in range(0, total, size):
                part = Chunk(sequence, start, min(total, start + size))
                step = Step((), (part,), (sequence,) if start == 0 else ())
                self.runner.admit(step)
                wanted = range(max(first, start), min(total - 1, part.stop))
                logits = self.runner.logits(step, self.runner.rows.sent([at - start for at in wanted]))
                parts.append(logits)
            self.most_tokens = max(self.most_tokens, total)
        finally:
            self.blocks.give_back(sequence.pages)
        logits = torch.cat(parts)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def cache_report(self) -> CacheReport:
        """Bytes of the tokens at the fullest moment: the layout's bytes a token, which the pool is made of exactly."""
        planes = {name: size * self.most_tokens for name, size in self.cache.plane_bytes().items()}
        return CacheReport(planes, self.most_tokens, self.most_tokens * self.values_per_token, self.shared_bytes)

    @property
    def pool_bytes(self) -> int:
        """Pages times bytes a page: what was allocated for K and V."""
        return self.cache.pages * self.cache.page_bytes

    def describe(self) -> dict[str, Any]:
        """Engine, attention backend, dtypes, pool and versions, for the record."""
        model = self.loaded.model
        return {
            "engine": "paged",
            "attention": self.cache.name,
            "prefill": "quantized",
            "chunk": self.chunk,
            "page_size": self.cache.page_size,
            "pool_bytes": self.pool_bytes,
            "max_running": self.max_running,
            "compute_dtype": str(model.dtype).removeprefix("torch."),
            "device": str(self.runner.rows.device),
            "transformers": transformers.__version__,
        }


def _to_host(device: Tensor) -> Tensor:
    """A pinned copy that is on its way: read it after an event recorded behind it."""
    return torch.empty(device.shape, dtype=device.dtype, pin_memory=True).copy_(device, non_blocking=True)

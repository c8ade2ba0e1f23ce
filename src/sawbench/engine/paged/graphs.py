"""Decode steps from CUDA graphs: one capture for each batch-size bucket, replayed with other rows, lengths and pages.

Everything that changes between steps lies in device tensors (``Rows``, and the rows of the batch), so a replay needs
one copy of row numbers from the host and nothing back. The batch is padded with the row that nobody owns.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sawbench.attention.paged import PagedCache, PagedStep
from sawbench.engine.paged.fuse import Fused
from sawbench.engine.paged.rows import Rows
from sawbench.engine.paged.runner import Runner, greedy
from sawbench.engine.paged.scheduler import Step

BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Captured:
    """A graph with its input (``rows`` int64 [bucket]) and outputs (``tokens`` int64, ``finite`` bool [bucket])."""

    graph: Any
    rows: Tensor
    tokens: Tensor
    finite: Tensor


class GraphRunner(Runner):
    """Runs decode-only steps from graphs, all others eagerly, and all of them through compiled layers."""

    def __init__(self, model: Any, cache: PagedCache, rows: Rows) -> None:
        super().__init__(model, cache, rows)
        self.fused = Fused.of(model)
        self._greedy = torch.compile(greedy, dynamic=True)
        self.captured: dict[tuple[int, int], Captured] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def forward(self, ids: Tensor, paged: PagedStep, places: Tensor) -> Tensor:
        with self.fused.running():
            return super().forward(ids, paged, places)

    def greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._greedy(logits)
        return found

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[Tensor, Tensor]:
        if step.chunks or len(step.decodes) > BUCKETS[-1]:
            return super().run(step)
        self.admit(step)
        captured = self.capture(len(step.decodes))
        padding = [self.rows.padding] * (len(captured.rows) - len(step.decodes))
        captured.rows.copy_(self.rows.sent([*(s.row for s in step.decodes), *padding]))
        captured.graph.replay()
        return captured.tokens[: len(step.decodes)], captured.finite[: len(step.decodes)]

    @torch.inference_mode()
    def capture(self, batch: int) -> Captured:
        """The graph for ``batch`` sequences: the smallest bucket that holds them, captured when first asked for."""
        bucket = next(size for size in BUCKETS if size >= batch)
        key = (bucket, self.rows.uniforms.data_ptr())  # the uniforms move where a request needs more of them
        if key not in self.captured:
            self.captured[key] = self._capture(bucket)
        return self.captured[key]

    def _capture(self, bucket: int) -> Captured:
        rows = torch.full((bucket,), self.rows.padding, dtype=torch.int64, device=self.rows.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles and allocates what a capture must not
            self._decode(rows)
            self._decode(rows)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            tokens, finite = self._decode(rows)
        return Captured(graph, rows, tokens, finite)

    def _decode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """One token for each of ``rows``, from what the device knows alone."""
        state = self.rows
        state.lengths[state.padding].zero_()
        state.drawn[state.padding].zero_()
        at, tables, size = state.lengths[rows], state.tables[rows], self.cache.page_size
        page = tables.gather(1, (at // size)[:, None])[:, 0].to(torch.int64)
        paged = PagedStep(self.cache, page * size + at % size, at, tables, (at + 1).to(torch.int32))
        logits = self.forward(state.tokens[rows], paged, torch.arange(len(rows), device=state.device))
        state.lengths[rows] = at + 1
        return self.sample(logits, rows)

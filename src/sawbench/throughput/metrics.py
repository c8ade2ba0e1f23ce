"""What a run of a load says, from the times at which its tokens landed on the host.

| metric | formula | unit |
|---|---|---|
| output_tps | output tokens / wall time, from the first request sent to the last token landed | tokens/s |
| output_tps_request | mean over requests of (output tokens - 1) / (e2e - TTFT) | tokens/s |
| ttft_ms | first token - arrival | ms |
| tpot_ms | (e2e - TTFT) / (output tokens - 1) | ms |
| e2e_s | last token - arrival | s |
| admitted | requests that hold pages, mean over time, and most | requests |
| pool_use | pages in use / pages, mean over time, and most | 1 |
| preemptions | times that a request lost its pages and was computed again | 1 |

TTFT, TPOT and e2e come as mean, p50, p75, p90 and p99 (linear interpolation between order statistics). Arrivals are
those of a closed loop: the first ``concurrency`` requests at the start, each other one as an earlier one ends. Tokens
are counted as ids, never as text; what is computed twice after a preemption counts once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

QUANTILES = (50, 75, 90, 99)


@dataclass
class Trace:
    """Times (perf_counter's seconds) of one request's arrival and of its tokens on the host."""

    arrival: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def e2e(self) -> float:
        return self.last - self.arrival

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.tokens - 1)


@dataclass
class Recorder:
    """Watches an engine's steps land: ``traces`` by request id, in order of arrival."""

    ids: Sequence[str]
    concurrency: int
    start: float
    traces: dict[str, Trace] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    used: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waiting = iter(self.ids)
        self._arrive(self.concurrency, self.start)

    def watch(self, steps: Iterable[Any], engine: Any) -> Iterator[str]:
        """Yield a request id for every token that counts."""
        for landed in steps:
            self.times.append(landed.time)
            self.running.append(len(engine.scheduler.running) + len(landed.finished))
            self.used.append(engine.blocks.used / (engine.blocks.pages - 1))
            yield from self._tokens(landed)
            self._arrive(len(landed.finished), landed.time)

    def _tokens(self, landed: Any) -> Iterator[str]:
        for sequence, _ in landed.tokens:
            if sequence.done and sequence not in landed.finished:
                continue  # drawn one step beyond a request's end
            trace = self.traces[sequence.request.id]
            trace.first = trace.first or landed.time
            trace.last = landed.time
            trace.tokens += 1
            yield sequence.request.id

    def _arrive(self, count: int, time: float) -> None:
        for _, name in zip(range(count), self._waiting, strict=False):
            self.traces[name] = Trace(time)

    def summary(self) -> dict[str, float]:
        """The metrics of this module's table, but for preemptions, which the scheduler counts."""
        traces = list(self.traces.values())
        wall = self.times[-1] - self.start
        tokens = sum(t.tokens for t in traces)
        spans = np.diff([self.start, *self.times])
        return {
            "wall_s": wall,
            "output_tokens_total": tokens,
            "output_tps": tokens / wall,
            "output_tps_request": float(np.mean([1 / t.tpot for t in traces])),
            **spread("ttft_ms", [1e3 * t.ttft for t in traces]),
            **spread("tpot_ms", [1e3 * t.tpot for t in traces]),
            **spread("e2e_s", [t.e2e for t in traces]),
            "admitted_mean": float(np.average(self.running, weights=spans)),
            "admitted_max": max(self.running),
            "pool_use_mean": float(np.average(self.used, weights=spans)),
            "pool_use_max": max(self.used),
        }


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """``name`` is the mean; ``name_p50`` and so on are quantiles."""
    quantiles = np.percentile(values, QUANTILES)
    return {name: float(np.mean(values))} | {
        f"{name}_p{q}": float(value) for q, value in zip(QUANTILES, quantiles, strict=True)
    }

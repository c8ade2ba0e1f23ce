"""Metrics against a stream of steps whose every number was worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from sawbench.core.engine import Request, Sampling
from sawbench.engine.paged.scheduler import Sequence
from sawbench.throughput.metrics import Recorder, spread


class Stream:
    """Lands steps by hand: who draws a token, who ends with it."""

    def __init__(self) -> None:
        self.sequences = {name: Sequence(Request(name, (1,), Sampling(9))) for name in "abc"}
        self.running: list[str] = []
        self.scheduler = SimpleNamespace(running=self.running)
        self.blocks = SimpleNamespace(used=0, pages=11)

    def land(self, time: float, tokens: str, finished: str, running: str, used: int) -> Any:
        self.running[:] = running
        self.blocks.used = used
        for name in finished:
            self.sequences[name].done = True
        drawn = tuple((self.sequences[name], 0) for name in tokens)
        return SimpleNamespace(time=time, tokens=drawn, finished=tuple(self.sequences[name] for name in finished))

    def steps(self) -> Any:
        """Two at a time: a (3 tokens) and b (2), then c (2), which waits for b."""
        yield self.land(11.0, "a", "", "ab", 2)
        yield self.land(12.0, "ab", "", "ab", 4)
        yield self.land(14.0, "ab", "ab", "", 6)
        yield self.land(15.0, "c", "", "c", 1)
        yield self.land(18.0, "cb", "c", "", 1)  # b was launched once more before its end was known


@pytest.fixture
def recorder() -> Recorder:
    stream = Stream()
    recorder = Recorder(["a", "b", "c"], concurrency=2, start=10.0)
    counted = list(recorder.watch(stream.steps(), stream))
    assert counted == ["a", "a", "b", "a", "b", "c", "c"]
    return recorder


def test_tokens_are_counted_as_ids_and_never_beyond_a_requests_end(recorder: Recorder) -> None:
    assert {name: trace.tokens for name, trace in recorder.traces.items()} == {"a": 3, "b": 2, "c": 2}


def test_the_job(recorder: Recorder) -> None:
    summary = recorder.summary()
    assert summary["wall_s"] == 8.0
    assert summary["output_tps"] == 7 / 8


def test_a_closed_loop_sends_the_next_request_when_one_ends(recorder: Recorder) -> None:
    assert {name: trace.arrival for name, trace in recorder.traces.items()} == {"a": 10.0, "b": 10.0, "c": 14.0}


def test_each_request(recorder: Recorder) -> None:
    summary = recorder.summary()
    assert summary["ttft_ms"] == pytest.approx(1e3 * (1 + 2 + 1) / 3)
    assert summary["e2e_s"] == pytest.approx((4 + 4 + 4) / 3)
    assert summary["tpot_ms"] == pytest.approx(1e3 * (1.5 + 2 + 3) / 3)  # (last - first) / (tokens - 1)
    assert summary["output_tps_request"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 3) / 3)
    assert summary["ttft_ms_p50"] == pytest.approx(1e3)


def test_admission_and_pool_are_means_over_time(recorder: Recorder) -> None:
    summary = recorder.summary()
    assert summary["admitted_mean"] == pytest.approx((2 * 1 + 2 * 1 + 2 * 2 + 1 * 1 + 1 * 3) / 8)
    assert summary["admitted_max"] == 2
    assert summary["pool_use_mean"] == pytest.approx((2 * 1 + 4 * 1 + 6 * 2 + 1 * 1 + 1 * 3) / 10 / 8)
    assert summary["pool_use_max"] == pytest.approx(0.6)


def test_quantiles() -> None:
    found = spread("x", list(range(101)))
    assert found == {"x": 50.0, "x_p50": 50.0, "x_p75": 75.0, "x_p90": 90.0, "x_p99": 99.0}

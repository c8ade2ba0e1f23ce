"""The kernel benchmark: check a kernel, time it under a CUDA graph, and put the time beside what its bytes cost."""

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain

import torch

from sawbench.throughput.decode_cases import decode_cases
from sawbench.throughput.kernel_cases import Case, Family, KernelShape, Prepared
from sawbench.throughput.store_cases import prefill_cases, store_cases

GRAPH_MICROSECONDS = 2_000
"""A graph repeats a kernel for about so long, so that launching the graph does not count."""
REPLAYS = 15
RESERVE = 6 << 30


@dataclass(frozen=True)
class Row:
    """One line of results/kernels/*.csv. Times in microseconds: the median of REPLAYS graph replays, and their 10th
    and 90th percentile. ``fraction``: floor over time. ``vs_bf16``: time of the best BF16 peer of the shape over ours,
    medians, or where a family says so the median over replays of both in turn.
    """

    family: str
    kernel: str
    batch: int
    context: int
    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    bytes: int
    floor_us: float
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    tb_per_s: float | None = None
    fraction: float | None = None
    vs_bf16: float | None = None
    error: float | None = None
    note: str = ""


def timer(steps: Sequence[Callable[[], object]]) -> Callable[[], float]:
    """Captures a CUDA graph that cycles through ``steps``; each call replays it: the microseconds of a step."""
    single = _elapsed(lambda: [step() for step in steps]) / len(steps)
    cycles = max(1, round(GRAPH_MICROSECONDS / (single * len(steps))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(cycles):
            for step in steps:
                step()
    graph.replay()
    return lambda: _elapsed(graph.replay) / (cycles * len(steps))


def _elapsed(run: Callable[[], object]) -> float:
    """Microseconds of device time of ``run``, once before the clock and once under it."""
    run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def measure(case: Case, device: torch.device, bandwidth: float, peer: Callable[[], float] | None = None) -> Row:
    """The row of one case: skipped, failed, wrong (no time), or timed; in turn with ``peer`` where there is one."""
    row = Row(case.family, case.kernel, **asdict(case.shape), bytes=case.bytes, floor_us=case.bytes / bandwidth * 1e6)
    skip = case.skip or _too_large(case, device)
    if skip:
        return replace(row, note=skip)
    try:
        return _timed(replace(row, note=case.note), case.prepare(device), case.bytes, peer)
    except torch.cuda.OutOfMemoryError:
        return replace(row, note="skipped: out of memory")
    except RuntimeError as error:  # a peer refuses a shape so; the other rows go on
        return replace(row, note=f"failed: {str(error).splitlines()[0]}")
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _timed(row: Row, prepared: Prepared, size: int, peer: Callable[[], float] | None) -> Row:
    error = prepared.error()
    if not error <= prepared.tolerance:
        return replace(row, error=error, note=f"wrong: error {error:.1e} above {prepared.tolerance:.0e}")
    once = timer(prepared.steps)
    turns = [(once(), peer() if peer else None) for _ in range(REPLAYS)]
    times = sorted(own for own, _ in turns)
    ratios = [other / own for own, other in turns if other]
    median = statistics.median(times)
    return replace(
        row,
        time_us=median,
        low_us=times[len(times) // 10],
        high_us=times[-1 - len(times) // 10],
        tb_per_s=size / median * 1e-6,
        fraction=row.floor_us / median,
        vs_bf16=statistics.median(ratios) if ratios else None,
        error=error,
    )


def _too_large(case: Case, device: torch.device) -> str:
    free = torch.cuda.mem_get_info(device)[0] - RESERVE
    return f"skipped: takes {case.memory / 1e9:.0f} GB" if case.memory > free else ""


def measure_shape(cases: Iterable[Case], device: torch.device, bandwidth: float) -> Iterator[Row]:
    """Rows of one shape as they are made, the BF16 baselines first: a row has its ratio to the best of its family."""
    ordered = sorted(cases, key=lambda case: not case.baseline)
    baselines = [(measure(case, device, bandwidth), case) for case in ordered if case.baseline]
    timed = [(row.time_us, case) for row, case in baselines if row.time_us]
    best = {case.family: (time, case) for time, case in sorted(timed, key=lambda each: -each[0])}  # the last one stays
    peers = {family: timer(case.prepare(device).steps) for family, (_, case) in best.items() if case.in_turn}
    others = (measure(c, device, bandwidth, peers.get(c.family)) for c in ordered if not c.baseline)
    for row in chain((row for row, _ in baselines), others):
        if row.time_us and row.vs_bf16 is None and row.family in best:
            row = replace(row, vs_bf16=best[row.family][0] / row.time_us)
        yield row


POINTS = ((1, 32768), (16, 16384), (64, 8192))


def _decode_grid() -> Iterator[KernelShape]:
    """Batch by context at one shape of heads."""
    for batch in (16, 1, 64, 4, 256):
        yield from (KernelShape(batch, 1 << k) for k in range(10, 18))


def _decode_other() -> Iterator[KernelShape]:
    """Other heads, head sizes and pages at three points."""
    for heads in ((16, 8), (64, 8), (12, 2), (14, 2)):
        yield from (KernelShape(*point, *heads) for point in POINTS)
    yield from (KernelShape(*point, head_dim=64) for point in POINTS)
    for page in (16, 64):
        yield from (KernelShape(*point, page_size=page) for point in POINTS)


SHAPES: dict[str, dict[str, list[KernelShape]]] = {
    "paged_decode": {
        "quick": [KernelShape(*point) for point in (*POINTS, (256, 2048))],
        "grid": list(_decode_grid()),
        "other": list(_decode_other()),
    },
    "quantize_store": {
        "quick": [KernelShape(32, 1), KernelShape(1, 8192)],
        "grid": [KernelShape(n, 1) for n in (1, 8, 32, 128)] + [KernelShape(1, 1 << k) for k in range(9, 16, 2)],
        "other": [KernelShape(1, 8192, *heads) for heads in ((16, 8), (64, 8), (12, 2), (14, 2))],
    },
    "paged_prefill": {
        "quick": [KernelShape(1, 16384)],
        "grid": [KernelShape(1, 2048), KernelShape(4, 4096), KernelShape(1, 16384), KernelShape(1, 65536)],
        "other": [KernelShape(1, 16384, *heads) for heads in ((16, 8), (64, 8), (12, 2), (14, 2))],
    },
}
FAMILIES: dict[str, Family] = {
    "paged_decode": decode_cases,
    "quantize_store": store_cases,
    "paged_prefill": prefill_cases,
}

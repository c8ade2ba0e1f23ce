"""Where a decode step's time goes, from a profiler pass of its own: never from a run whose time is reported.

The rows are those of the paper's Table 4 (time of one layer in one step), so that the two lie side by side; sampling
and the host, which that table leaves out, are rows of their own. The first class whose pattern a kernel's name
matches takes it; what no pattern knows is "Norm/Act/RoPE", the small operations between the others.
"""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from sawbench.throughput.device import synchronise
from sawbench.throughput.steps import SETTLING, Decoding

CLASSES = {
    "Attention": r"decode_kernel|merge_kernel|prefill|dequantize|flash|fmha|attention",
    "set_kv": r"store_kernel|products_kernel|nearest_kernel|index_put",
    "outside rotation": r"hadamard|project_kernel",
    "MatMul": r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk|::(mm|bmm|addmm|matmul|linear)\b",
    "Sampling": r"argmax|sort|topk|cumsum|isfinite|nan_to_num|reduce_kernel",
}
REST = "Norm/Act/RoPE"
HOST, TOTAL = "Host", "TOTAL"
ROWS = (*CLASSES, REST, HOST, TOTAL)


def classify(kernel: str) -> str:
    """The row that a kernel's time belongs to."""
    name = kernel.lower()
    return next((row for row, pattern in CLASSES.items() if re.search(pattern, name)), REST)


def step_split(engine: Any, batch: int, context: int, steps: int = 20) -> list[dict[str, Any]]:
    """One row a class: ``step_us`` of a whole step, ``value`` in ns of one layer in one step (Table 4's unit).

    ``Host`` is the part of a step in which the device has nothing to do: wall time of unprofiled steps less the
    kernels' own. A class's time is the sum of its kernels', which do not overlap on one stream.
    """
    layers = engine.loaded.shape.layers
    decoding = Decoding(engine, batch, context, 2 * (SETTLING + steps) + 4)
    wall = sum(decoding.times(steps)) / steps
    kernels = profiled(decoding, steps)
    decoding.close()
    busy = {row: kernels[row] / steps for row in (*CLASSES, REST)}
    busy[HOST] = max(0.0, 1e6 * wall - sum(busy.values()))
    busy[TOTAL] = sum(busy.values())
    return [
        {"row": row, "batch": batch, "context": context, "step_us": busy[row], "value": 1e3 * busy[row] / layers}
        for row in ROWS
    ]


def profiled(decoding: Decoding, steps: int) -> dict[str, float]:
    """Microseconds by class over ``steps`` steps (the settling ones are run outside the profiler)."""
    device = decoding.device
    for _ in range(SETTLING):
        next(decoding.steps)
    synchronise(device)
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as record:
        for _ in range(steps):
            next(decoding.steps)
        synchronise(device)
    return by_class(durations(record, device))


def durations(record: Any, device: torch.device) -> Iterable[tuple[str, float]]:
    """(name, microseconds) of every kernel, or on a CPU of every operator without what it calls."""
    for event in record.key_averages():
        own = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        if own and (device.type == "cpu" or event.device_type == torch.autograd.DeviceType.CUDA):
            yield event.key, own


def by_class(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    total = dict.fromkeys((*CLASSES, REST), 0.0)
    for name, microseconds in kernels:
        total[classify(name)] += microseconds
    return total

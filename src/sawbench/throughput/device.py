"""What the card itself does: rates that every floor and bound is computed from, and its clock."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from sawbench.throughput.roofline import Rates

REPEATS = 9
SIZES = {"cuda": (2 << 30, 8192), "cpu": (1 << 26, 256)}
"""Bytes read and copied, and the side of the square matrices."""


@dataclass(frozen=True)
class DeviceRates:
    """Measured: ``copy`` counts bytes read and written, ``read`` those of a sum; ``matmul`` in FLOP/s."""

    device: str
    dtype: str
    copy: float
    read: float
    matmul: float

    @property
    def rates(self) -> Rates:
        return Rates(self.read, self.matmul)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Median time of ``run`` on the host's clock, the device idle before and after; once before the clock."""
    run()
    times = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@cache
@torch.inference_mode()
def measure_rates(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> DeviceRates:
    """Copy and read bandwidth over gigabytes, and the rate of a large square matrix product in ``dtype``; once a
    process."""
    side = SIZES[device.type][1]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    matmul = 2 * side**3 / seconds(lambda: a @ b, device)
    name = str(dtype).removeprefix("torch.")
    return DeviceRates(device_name(device), name, copy_bandwidth(device), read_bandwidth(device), matmul)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read plus written, of a copy of gigabytes."""
    source = torch.ones(SIZES[device.type][0] // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device)


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of a sum over gigabytes."""
    source = torch.ones(SIZES[device.type][0] // 4, dtype=torch.float32, device=device)
    return source.nbytes / seconds(lambda: source.sum(), device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def memory(device: torch.device) -> dict[str, Any]:
    """Peak bytes of this process since ``reset_memory``: reserved on the card, or resident on a CPU (since start)."""
    if device.type == "cuda":
        return {"peak_bytes": torch.cuda.max_memory_reserved(device)}
    import resource

    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def reset_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

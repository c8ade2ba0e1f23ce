"""Where and how a run was made, read without importing torch."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("sawbench", "torch", "triton", "transformers", "lm-eval", "datasets", "gguf", "numpy", "hydra-core")


def environment(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Command, commit, date (UTC), machine and versions. ``arguments`` are those after ``python -m sawbench``."""
    given = sys.argv[1:] if arguments is None else arguments
    return {
        "command": shlex.join(["python", "-m", "sawbench", *given]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **_commit(),
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": _memory_gib(),
            "gpus": _gpus(),
            "platform": platform.platform(terse=True),
        },
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _commit() -> dict[str, Any]:
    """Commit of the checkout and whether tracked files differ from it; SAWBENCH_COMMIT where git cannot tell."""
    commit = _output("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")
    if not commit:
        return {"commit": os.environ.get("SAWBENCH_COMMIT"), "dirty": None}
    changed = _output("git", "-C", str(Path(__file__).parents[3]), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)}


def _gpus() -> list[str]:
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return listed.splitlines()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):  # a platform that does not know
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    """Standard output of a command, empty where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

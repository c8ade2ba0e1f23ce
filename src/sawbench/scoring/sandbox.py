"""Runs generated Python where it can do no harm, and says what it printed.

``strict``: own user, network, pid, mount, IPC and UTS namespaces; a read-only root that holds the Python installation
and nothing of the user's; uid ``nobody`` when started as root; no capability; limits on time, memory, processes and
file size; one private folder in memory. ``weak`` (where a machine forbids namespaces): the uid is dropped if it can be,
the limits but that on processes hold, and the program's descendants are killed; network and world-readable files stay
within reach. Total memory is bounded by ``memory * processes + folder``.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from sawbench.core.errors import UserError, illegal
from sawbench.core.progress import Progress

Mode = Literal["strict", "weak"]

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
GRACE = 20.0
"""Seconds that the supervisor may take beyond the program's limit before it is given up."""


@dataclass(frozen=True)
class Limits:
    """Wall ``seconds``; ``memory`` (address space of a process), ``file`` (any one file, each output stream) and
    ``folder`` (all files of the private folder) in bytes; ``processes`` with threads."""

    seconds: float = 10.0
    memory: int = 1 << 30
    processes: int = 16
    file: int = 1 << 20
    folder: int = 64 << 20


@dataclass(frozen=True)
class Program:
    """Python source and what it reads. ``run_name`` other than ``__main__`` leaves a script's main block out."""

    source: str
    stdin: str = ""
    run_name: str = "__main__"


@dataclass(frozen=True)
class Outcome:
    """How a program ended. ``code`` is negative for a signal; the streams are cut at the limit on files."""

    status: Literal["exit", "timeout"]
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def error(self) -> str:
        """One line on why it did not end well; empty when it did."""
        if self.status == "timeout":
            return "time limit"
        lines = self.stderr.strip().splitlines()
        return "" if self.code == 0 else f"exit code {self.code}: {lines[-1][:200] if lines else 'no message'}"


class SandboxRefused(UserError):
    """This machine cannot isolate a program as asked, for ``reason``."""

    def __init__(self, mode: Mode, reason: str) -> None:
        advice = "; task.sandbox=weak isolates less, later leaves it to rescore" if mode == "strict" else ""
        super().__init__(f"task.sandbox={mode} is not possible on this machine ({reason}){advice}")
        self.reason = reason


@dataclass(frozen=True)
class Sandbox:
    """Runs programs under ``limits``; ``mode`` is stated in every record that rests on it."""

    mode: Mode = "strict"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "weak"):
            raise illegal("task.sandbox", self.mode, ("strict", "weak"))

    def check(self) -> None:
        """Raise SandboxRefused, in one line, where this machine cannot do what ``mode`` says."""
        if reason := refusal(self.mode):
            raise SandboxRefused(self.mode, reason)

    def describe(self) -> dict[str, Any]:
        """What a record states of the isolation: the mode, the program's uid, the limits."""
        return {"sandbox": self.mode, "uid": int(_probe(self.mode).stdout), **asdict(self.limits)}

    def run(self, program: Program) -> Outcome:
        """Run one program to its end or its limit. Raises SandboxRefused before the program starts, never after."""
        with tempfile.TemporaryDirectory(prefix="sawbench-") as folder, _streams() as (request, out, err):
            json.dump(self._request(program, folder), request)
            request.seek(0)
            answer = _supervise(request, out, err, self.limits.seconds + GRACE)
            if answer["status"] == "refused":
                raise SandboxRefused(self.mode, answer["reason"])
            stdout, stderr = (_read(stream, self.limits.file) for stream in (out, err))
            return Outcome(answer["status"], answer["code"], stdout, stderr, answer["seconds"])

    def run_many(self, programs: Sequence[Program], progress: Progress, workers: int | None = None) -> list[Outcome]:
        """Outcomes in order. Each program is a process of its own, so threads are enough to wait for them."""
        with ThreadPoolExecutor(workers or available_workers()) as pool:
            return list(progress(pool.map(self.run, programs), len(programs), "running code"))

    def _request(self, program: Program, folder: str) -> dict[str, Any]:
        return {
            **asdict(program),
            "python": sys.executable,
            "environment": ENVIRONMENT,
            "binds": _binds(),
            "folder": os.path.realpath(folder),
            "limits": asdict(self.limits),
            "weak": self.mode == "weak",
        }


def refusal(mode: Mode) -> str | None:
    """Why ``mode`` cannot work here, found by running a program that prints its uid; None when it can."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    try:
        return _probe(mode).error or None
    except SandboxRefused as error:
        return error.reason


def available_workers() -> int:
    """Programs that may run side by side: the cores that this process may use."""
    return len(os.sched_getaffinity(0))


@cache
def _probe(mode: Mode) -> Outcome:
    return Sandbox(mode, Limits(seconds=60)).run(Program("import os; print(os.getuid())"))


def _binds() -> list[str]:
    """What the program may read: the system's libraries and the Python that runs us."""
    python = Path(sys.executable)
    ours = (Path(sys.base_prefix), Path(sys.prefix), python.resolve().parent)
    system = [Path(path) for path in SYSTEM]
    return [*SYSTEM, *dict.fromkeys(str(p) for p in ours if not any(p.is_relative_to(s) for s in system))]


class _streams:
    """Three unnamed files: the request to the supervisor, the program's output and its errors."""

    def __enter__(self) -> tuple[IO[str], IO[bytes], IO[bytes]]:
        self.files = (tempfile.TemporaryFile("w+"), tempfile.TemporaryFile(), tempfile.TemporaryFile())
        return self.files

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()


def _supervise(request: IO[str], out: IO[bytes], err: IO[bytes], seconds: float) -> dict[str, Any]:
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("jail.py")), str(writing)]
    with os.fdopen(reading) as status:
        process = subprocess.Popen(
            command, stdin=request, stdout=out, stderr=err, pass_fds=[writing], env={}, start_new_session=True
        )
        os.close(writing)
        try:
            process.wait(seconds)
        finally:
            process.kill()
            process.wait()
        text = status.read()
    return json.loads(text) if text else {"status": "refused", "reason": _read(err, 1000).strip() or "no answer"}


def _read(stream: IO[bytes], limit: int) -> str:
    stream.seek(0)
    return stream.read(limit).decode("utf-8", "replace")

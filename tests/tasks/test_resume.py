"""SIGKILL in the middle of a benchmark: what is on disk stays byte for byte, the rest is made, the table is one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.stub import StubEngine
from sawbench.core.progress import silent
from sawbench.core.records import TaskResult
from sawbench.results.samples import JsonlSink
from sawbench.tasks.base import TaskContext
from sawbench.tasks.math import MathBenchmark
from sawbench.tasks.protocol import Protocol

SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from tasks.test_resume import measured
measured(Path({folder!r}), 0.2)
"""


def measured(folder: Path, seconds: float = 0.0) -> TaskResult:
    """Eight problems, each answered after ``seconds``, samples in ``folder``; every second answer is right."""

    def answer(prompt: str) -> str:
        time.sleep(seconds)
        number = int(prompt.split("Problem ")[1][0])
        return rf"\boxed{{{number if number % 2 else -1}}}"

    engine, sink = StubEngine(answer), JsonlSink(folder / "samples.jsonl")
    given = {"engine": engine, "reference": lambda: engine, "sink": sink, "progress": silent, "seed": 0}
    task = MathBenchmark(name="math500", protocol=Protocol(temperature=0.6, repeats=2), data=str(folder / "rows.jsonl"))
    try:
        return task.run(TaskContext(**{name: given.get(name) for name in TaskContext.__dataclass_fields__}))  # type: ignore
    finally:
        sink.close()


def problems(folder: Path) -> Path:
    folder.mkdir()
    rows = [{"problem": f"Problem {n}?", "answer": str(n), "unique_id": f"p{n}"} for n in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def killed_after(folder: Path, lines: int) -> bytes:
    """Run in a process of its own, kill it once ``lines`` samples are on disk, and return what is there."""
    source = SLOW.format(tests=str(Path(__file__).parents[1]), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.DEVNULL)
    samples, deadline = folder / "samples.jsonl", time.monotonic() + 60
    while not samples.exists() or samples.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return samples.read_bytes()


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, undisturbed = problems(tmp_path / "killed"), problems(tmp_path / "whole")
    before = killed_after(folder, 3)
    assert before.count(b"\n") < 16
    result = measured(folder)
    after = (folder / "samples.jsonl").read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])
    assert after.count(b"\n") == 16
    assert result == measured(undisturbed)
    assert result.metrics[0].value == 50

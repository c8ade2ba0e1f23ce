"""``rescore``: cells on disk get the verdicts of today's rules; samples are not touched, and halves are not scored."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from helpers.stub import StubEngine
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import Metric, TaskResult
from sawbench.results import Cell, RunStore
from sawbench.tasks.base import TaskContext
from sawbench.tasks.math import MathBenchmark
from sawbench.tasks.protocol import Protocol
from sawbench.verbs.rescore import OPTIONS, main, targets

ROWS = [{"problem": f"Problem {n}?", "answer": str(n), "unique_id": f"p{n}"} for n in range(4)]
STORED = Metric("bits_per_value", 4.5, "bits")


def identity(data: str = "gone.jsonl", target: str = "sawbench.tasks.math.MathBenchmark") -> dict[str, Any]:
    protocol = {"_target_": "sawbench.tasks.protocol.Protocol", "name": "greedy"}
    task = {"_target_": target, "name": "math500", "protocol": protocol, "data": data}
    return {"model": {"name": "stub"}, "method": {"name": "int4"}, "task": task, "seed": 0}


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """A finished cell whose verdicts (all wrong) are older than the rules."""
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    cell = RunStore(tmp_path / "results").cell(identity())
    assert cell.claim()
    engine = StubEngine(lambda prompt: rf"\boxed{{{prompt.split('Problem ')[1][0]}}}")
    given = {"engine": engine, "reference": lambda: engine, "sink": cell.sink, "progress": silent, "seed": 0}
    task = MathBenchmark(name="math500", protocol=Protocol(), data=str(data))
    task.run(TaskContext(**{name: given.get(name) for name in TaskContext.__dataclass_fields__}))  # type: ignore[arg-type]
    cell.finish(
        TaskResult((Metric("accuracy", 0.0, "%", n=4), STORED), {"cache": [{"plane": "key.codes", "bytes": 1}]})
    )
    cell.release()
    data.unlink()
    return cell


def rescore(cell: Cell, run: str | None = None) -> int:
    root = str(cell.folder.parents[1])
    return main(OmegaConf.create({"results": root, "run": run, **dict.fromkeys(OPTIONS)}))


def test_new_verdicts_replace_old_ones_offline(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    before = (cell.folder / "samples.jsonl").read_bytes()
    assert rescore(cell) == 0
    result = cell.result()
    assert result.metrics[0].value == 100
    assert STORED in result.metrics  # what the run measured of itself stays
    assert set(result.tables) == {"cache", "scores", "conditions"}
    assert (cell.folder / "samples.jsonl").read_bytes() == before
    assert "accuracy" in capsys.readouterr().out
    assert (cell.folder.parents[1] / "metrics.csv").exists()


def test_half_a_run_is_not_scored_as_a_whole(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    path = cell.folder / "samples.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert rescore(cell) == 1
    assert "math500: 3 of 4 answers; `run` makes the rest" in capsys.readouterr().out
    assert cell.result().metrics[0].value == 0


def test_a_run_that_was_killed_before_scoring_is_finished(cell: Cell) -> None:
    (cell.folder / "metrics.json").unlink()
    assert rescore(cell) == 0
    assert cell.result().metrics[0].value == 100


def test_a_name_that_no_run_has(cell: Cell) -> None:
    with pytest.raises(UserError, match=r"run=other names no run"):
        rescore(cell, run="other")


def test_a_results_folder_cannot_choose_what_is_run(cell: Cell) -> None:
    """A recorded target outside the tasks is left alone."""
    foreign = RunStore(cell.folder.parents[1]).cell(identity(target="os.system"))
    assert foreign.claim()
    foreign.sink.add("math500/p0/0", {"task": "math500", "of": 1})
    foreign.release()
    assert rescore(foreign, run=foreign.run) == 0
    assert not foreign.finished
    assert targets({"a": [{"_target_": "x"}], "_target_": "y", "b": {"c": {"_target_": "z"}}}) == ["y", "x", "z"]

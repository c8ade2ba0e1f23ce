"""``rescore``: cells on disk get the verdicts of today's rules; samples are not touched, and halves are not scored."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from helpers.stub import StubEngine
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import Metric, TaskResult
from sawbench.results import Cell, RunStore
from sawbench.results.samples import read_samples
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


def rescore(cell: Cell, run: str | None = None, **options: Any) -> int:
    root = str(cell.folder.parents[1])
    return main(OmegaConf.create({"results": root, "run": run, **dict.fromkeys(OPTIONS), **options}))


def answered(root: Path, task: dict[str, Any], samples: dict[str, dict[str, Any]]) -> Cell:
    """A cell of ``task`` that holds ``samples`` and no scores."""
    cell = RunStore(root / "results").cell({**identity(), "task": task})
    assert cell.claim()
    for key, sample in samples.items():
        cell.sink.add(key, sample)
    cell.release()
    return cell


def code_task(name: str, data: str | None, **options: Any) -> dict[str, Any]:
    kind = {"humaneval": "humaneval.HumanEval", "livecodebench": "livecodebench.LiveCodeBench"}[name]
    return {**identity()["task"], "_target_": f"sawbench.tasks.{kind}", "name": name, "data": data, **options}


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
    assert rescore(foreign, run=foreign.run) == 1
    assert not foreign.finished
    assert targets({"a": [{"_target_": "x"}], "_target_": "y", "b": {"c": {"_target_": "z"}}}) == ["y", "x", "z"]


PASSKEY = {"_target_": "sawbench.tasks.passkey.Passkey", "name": "passkey", "lengths": [1024], "depths": [0, 50]}
RULER = {"_target_": "sawbench.tasks.ruler.Ruler", "name": "ruler", "kinds": ["needle"], "lengths": [4096]}


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize(
    ("task", "cells"),
    [
        (PASSKEY, [{"length": 1024, "depth": depth, "repeat": 0} for depth in (50, 0)]),
        ({**RULER, "samples": 2}, [{"kind": "needle", "length": 4096, "number": number} for number in (1, 0)]),
    ],
)
def test_retrieval_is_scored_again_from_its_texts(
    tmp_path: Path, task: dict[str, Any], cells: list[dict[str, Any]], older: bool
) -> None:
    """An old verdict counts for nothing, and samples that say less than today's are scored all the same."""
    said = {} if older else {"tokens": 9, "thought_open": False}
    common = {"prompt_tokens": 9, "expected": ["48213"], "finish": "stop", "finite": True, "score": 0.0, **said}
    texts = ["<think>3 parts</think>48213", "48213"]
    samples = {"-".join(map(str, c.values())): {**c, **common, "text": t} for c, t in zip(cells, texts, strict=True)}
    cell = answered(tmp_path, task, samples)
    assert rescore(cell, run=cell.run) == 0
    result = cell.result()
    assert (result.metrics[0].name, result.metrics[0].value, result.metrics[0].n) == ("found", 100, 2)
    assert [row["item"] for row in result.tables["scores"]] == list(samples)[::-1]  # in the order of the grid


def test_half_a_grid_is_not_scored_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = {"length": 1024, "depth": 0, "repeat": 0, "expected": ["1"], "text": "1", "finish": "stop", "finite": True}
    cell = answered(tmp_path, PASSKEY, {"1024-0-0": sample})
    assert rescore(cell) == 1
    assert "passkey: 1 of 2 answers; `run` makes the rest" in capsys.readouterr().out
    assert not cell.finished


def test_a_named_run_that_cannot_be_scored_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"_target_": "sawbench.tasks.fidelity.Fidelity", "name": "fidelity"}
    cell = answered(tmp_path, task, {"p1": {"kl": 0.0}})
    assert rescore(cell, run=cell.run) == 1
    assert f"{cell.run}: cannot be scored again" in capsys.readouterr().out
    assert rescore(cell) == 0  # among others it is passed over
    assert "nothing in" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["humaneval", "livecodebench"])
class TestCode:
    """What a run of the model's code needs is asked for by the option that gives it."""

    def sample(self, name: str) -> dict[str, dict[str, Any]]:
        return {f"{name}/a/0": {"task": name, "item": "a", "repeat": 0, "of": 1, "text": "", "prompt": ""}}

    def test_another_file_than_the_runs_is_refused(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "rows.jsonl").write_text("{}")
        cell = answered(tmp_path, code_task(name, sha256(b"[]").hexdigest()), self.sample(name))
        given = {"sandbox": "strict", "allow_code_execution": True, "data": str(tmp_path / "rows.jsonl")}
        assert rescore(cell, **given) == 1
        out = capsys.readouterr().out
        assert f"{cell.run}: data={given['data']} is not the file that the run had" in out
        assert len(out.splitlines()) == 1
        assert not cell.finished
        with pytest.raises(UserError, match=r"data=gone is not a file"):
            rescore(cell, data="gone")

    def test_code_that_was_left_for_later_needs_a_sandbox(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cell = answered(tmp_path, code_task(name, None, sandbox="later"), self.sample(name))
        assert rescore(cell) == 1
        assert "sandbox=strict or sandbox=weak" in capsys.readouterr().out
        assert not cell.finished


def test_tests_in_a_local_file_are_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = answered(tmp_path, code_task("livecodebench", sha256(b"{}").hexdigest()), TestCode().sample("livecodebench"))
    assert rescore(cell, sandbox="strict", allow_code_execution=True) == 1
    assert f"{cell.run}: data=FILE is needed" in capsys.readouterr().out


def test_the_runs_own_file_is_taken(cell: Cell) -> None:
    data = cell.folder.parents[2] / "rows.jsonl"
    data.write_text("rows")
    again = answered(data.parent, {**identity(sha256(b"rows").hexdigest())["task"]}, {
        key: dict(sample) for key, sample in read_samples(cell.folder / "samples.jsonl").items()
    })  # fmt: skip
    assert rescore(again, run=again.run, data=str(data)) == 0
    assert again.result().metrics[0].value == 100

"""Tidy CSV files: rows of this disk's runs are renewed, rows of other machines' runs stay."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sawbench.core.records import Metric, TaskResult
from sawbench.results import RunStore, environment, write_tidy
from sawbench.results.tidy import KEYS, portable, read_csv


def finish(store: RunStore, method: str, kl: float, **extra: Any) -> str:
    identity = {
        "model": {"name": "m", "weights": "pretrained"},
        "method": {"name": method, "options": {"bits": 4}},
        "task": {"name": "fidelity"},
        "engine": {"name": "hf"},
        "seed": 0,
        **extra,
    }
    cell = store.cell(identity)
    assert cell.claim()
    said = {"name": "hf", "attention": "naive", "prefill": "quantized", "compute_dtype": "float32"}
    cell.environment(
        {"engine": said, "command": "python -m sawbench run model.path=/x/y/m.gguf", "machine": {"gpus": []}}
    )
    metrics = (Metric("kl", kl, "nats", kl / 2, kl * 2, 16), Metric("top1", None, "fraction"))
    cell.finish(
        TaskResult(metrics, {"layers": [{"layer": 0, "head": 1, "key": kl}, {"layer": 1, "head": 1, "key": kl}]})
    )
    cell.release()
    return cell.run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


def test_one_row_a_metric_with_unit_interval_and_every_key(store: RunStore) -> None:
    run = finish(store, "bdr", 0.0625)
    write_tidy(store)
    first, second = read_csv(store.root / "metrics.csv")
    assert first == {
        "model": "m", "method": "bdr", "options": "bits=4", "task": "fidelity", "engine": "hf", "attention": "naive",
        "prefill": "quantized", "dtypes": "compute_dtype=float32", "run": run, "metric": "kl", "value": "0.0625",
        "unit": "nats", "low": "0.03125", "high": "0.125", "n": "16",
    }  # fmt: skip
    assert second["value"] == ""
    assert tuple(first)[: len(KEYS)] == KEYS


def test_tables_become_files_with_the_same_keys_in_their_own_order(store: RunStore) -> None:
    finish(store, "bdr", 0.5)
    write_tidy(store)
    rows = read_csv(store.root / "fidelity_layers.csv")
    assert [row["layer"] for row in rows] == ["0", "1"]
    assert set(KEYS) < set(rows[0])


def test_rows_of_runs_that_are_not_here_stay_and_others_are_renewed(store: RunStore, tmp_path: Path) -> None:
    elsewhere = RunStore(tmp_path / "other")
    far = finish(elsewhere, "int4", 0.25)
    write_tidy(elsewhere, store.root)
    near = finish(store, "bdr", 0.5)
    write_tidy(store)
    cell = next(store.cells())
    assert cell.claim()
    cell.finish(TaskResult((Metric("kl", 0.75, "nats"),)), replace=True)
    write_tidy(store)
    rows = {(r["run"], r["metric"]): r["value"] for r in read_csv(store.root / "metrics.csv")}
    assert rows == {(far, "kl"): "0.25", (far, "top1"): "", (near, "kl"): "0.75"}


def test_writing_twice_changes_nothing(store: RunStore) -> None:
    for method in ("int4", "bdr"):
        finish(store, method, 0.1)
    before = {path: path.read_bytes() for path in write_tidy(store)}
    assert {path: path.read_bytes() for path in write_tidy(store)} == before


def test_processes_that_write_at_once_lose_no_rows(store: RunStore, tmp_path: Path) -> None:
    others = [RunStore(tmp_path / str(number)) for number in range(4)]
    runs = {finish(other, f"method{number}", 0.1) for number, other in enumerate(others)}
    code = "import sys; from pathlib import Path; from sawbench.results import RunStore, write_tidy; "
    code += "[write_tidy(RunStore(Path(sys.argv[1])), Path(sys.argv[2])) for _ in range(5)]"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(o.root), str(store.root)]) for o in others]
    assert [writer.wait() for writer in writers] == [0] * 4
    rows = read_csv(store.root / "metrics.csv")
    assert {row["run"] for row in rows} == runs
    assert len(rows) == 2 * len(runs)


def test_unfinished_cells_have_no_rows(store: RunStore) -> None:
    assert store.cell({"model": "m", "method": "x", "task": "t"}).claim()
    assert write_tidy(store) == []


def test_runs_csv_says_how_each_number_was_made(store: RunStore) -> None:
    run = finish(store, "bdr", 0.1)
    write_tidy(store)
    (row,) = read_csv(store.root / "runs.csv")
    assert (row["run"], row["weights"], row["seed"]) == (run, "pretrained", "0")
    assert row["command"] == "python -m sawbench run model.path=.../m.gguf"


def test_a_command_loses_the_folders_of_absolute_paths_only() -> None:
    assert portable("run 'method=a,b' task.data=data/x.jsonl model.path='/a/b/c d.gguf' x=/y") == (
        "run 'method=a,b' task.data=data/x.jsonl model.path='.../c d.gguf' x=.../y"
    )


def test_environment_names_the_machine_and_the_versions() -> None:
    record = environment(["run", "method=int4,bdr", "a b"])
    assert record["command"] == "python -m sawbench run method=int4,bdr 'a b'"
    assert record["versions"]["numpy"]
    assert record["machine"]["cores"] >= 1


def test_the_store_needs_no_torch() -> None:
    code = "import sys, sawbench.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

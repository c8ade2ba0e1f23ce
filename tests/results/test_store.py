"""Cells: addressed by content, claimed by one living process, never half-written, never overwritten in silence."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sawbench.core.records import Metric, TaskResult
from sawbench.results import RunStore

IDENTITY: dict[str, Any] = {
    "model": {"name": "smollm2-135m", "revision": "abc", "weights": "pretrained"},
    "method": {"name": "bdr", "options": {"order": 64, "scale": 1e-05}},
    "task": {"name": "fidelity", "prompts": 16},
    "engine": {"name": "hf", "chunk": 0},
    "seed": 0,
    "version": "0.1",
}
RESULT = TaskResult((Metric("kl", 0.06, "nats", 0.05, 0.07, 16),), {"layers": [{"layer": 0, "key": 0.1}]})

HOLDER = """
import sys, time
from pathlib import Path
import json
from sawbench.results import RunStore
cell = RunStore(Path(sys.argv[1])).cell(json.loads(sys.argv[2]))
print(cell.claim(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


def changed(**parts: Any) -> dict[str, Any]:
    return {**IDENTITY, **parts}


def test_the_folder_follows_from_the_identity_and_not_from_the_order_of_its_keys(store: RunStore) -> None:
    folder = store.cell(IDENTITY).folder
    assert folder.parent == store.runs
    assert folder.name.startswith("smollm2-135m-bdr-fidelity-")
    assert store.cell(dict(reversed(IDENTITY.items()))).folder == folder


@pytest.mark.parametrize("part", list(IDENTITY))
def test_every_part_of_the_identity_changes_the_folder(store: RunStore, part: str) -> None:
    other = changed(**{part: {**IDENTITY[part], "x": 1} if isinstance(IDENTITY[part], dict) else "other"})
    assert store.cell(other).folder != store.cell(IDENTITY).folder


@pytest.mark.parametrize("bad", [float("nan"), {1, 2}, Path("x")])
def test_an_identity_that_json_cannot_hold_is_refused(store: RunStore, bad: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        store.cell(changed(seed=bad))


def test_names_make_safe_folders(store: RunStore) -> None:
    assert store.cell(changed(model="../org/name x")).folder.parent == store.runs


def test_a_second_identical_run_finds_the_first(store: RunStore) -> None:
    cell = store.cell(IDENTITY)
    assert not cell.finished
    assert cell.claim()
    cell.sink.add("a", {"x": 1})
    cell.environment({"command": "c", "date": "d"})
    cell.finish(RESULT)
    cell.release()
    again = RunStore(store.root).cell(IDENTITY)
    assert again.finished
    assert again.result() == RESULT
    assert [c.run for c in store.cells()] == [again.run]
    assert yaml.safe_load((again.folder / "config.yaml").read_text()) == IDENTITY


def test_a_finished_cell_is_never_overwritten_in_silence(store: RunStore) -> None:
    cell = store.cell(IDENTITY)
    assert cell.claim()
    cell.finish(RESULT)
    other = TaskResult((Metric("kl", 9.0, "nats"),))
    with pytest.raises(FileExistsError):
        cell.finish(other)
    assert cell.result() == RESULT
    cell.finish(other, replace=True)
    assert cell.result() == other


def test_only_a_claim_may_write(store: RunStore) -> None:
    cell = store.cell(IDENTITY)
    for write in (lambda: cell.sink, lambda: cell.finish(RESULT), lambda: cell.environment({})):
        with pytest.raises(RuntimeError, match="claim"):
            write()


def test_two_claims_on_one_cell_never_both_succeed(store: RunStore) -> None:
    first, second = store.cell(IDENTITY), store.cell(IDENTITY)
    assert first.claim()
    assert first.claim()
    assert not second.claim()
    first.release()
    assert second.claim()


def test_a_claim_dies_with_its_process(store: RunStore) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root), json.dumps(IDENTITY)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        assert not store.cell(IDENTITY).claim()
    finally:
        holder.kill()
        holder.wait()
    assert store.cell(IDENTITY).claim()


def test_of_many_processes_one_gets_the_cell(store: RunStore) -> None:
    command = [sys.executable, "-c", HOLDER, str(store.root), json.dumps(IDENTITY)]
    holders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        said = [holder.stdout.readline().strip() for holder in holders if holder.stdout]
        assert sorted(said) == ["False"] * 3 + ["True"]
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def test_a_folder_of_another_identity_is_refused(store: RunStore) -> None:
    cell = store.cell(IDENTITY)
    assert cell.claim()
    cell.release()
    (cell.folder / "config.yaml").write_text("model: another\n")
    with pytest.raises(ValueError, match="describes another run"):
        cell.claim()


def test_a_resumed_cell_keeps_every_environment(store: RunStore) -> None:
    cell = store.cell(IDENTITY)
    assert cell.claim()
    cell.environment({"commit": "1"})
    cell.environment({"commit": "2"})
    assert [a["commit"] for a in cell.attempts()] == ["1", "2"]

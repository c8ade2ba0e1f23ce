"""Files that are whole or absent, and made once however many want them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sawbench.core.files import made_once, try_lock, write_atomic

REWRITER = """
import json, sys
from pathlib import Path
from sawbench.core.files import write_atomic
for number in range(10**9):
    write_atomic(Path(sys.argv[1]), json.dumps([number] * 5000))
    print(".", end="", flush=True)
"""

MAKER = """
import sys, time
from pathlib import Path
from sawbench.core.files import made_once
path, seconds = Path(sys.argv[1]), float(sys.argv[2])

def make():
    print("making", flush=True)
    time.sleep(seconds)  # the others come while it is being made
    path.write_text("whole")

made_once(path, make)
print(path.read_text(), flush=True)
"""


def maker(path: Path, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", MAKER, str(path), str(seconds)], stdout=subprocess.PIPE, text=True)


def test_a_kill_never_leaves_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", REWRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.read(200)
        writer.kill()
        writer.wait()
        assert len(set(json.loads(path.read_text()))) == 1


def test_an_atomic_write_that_fails_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.json"
    write_atomic(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_processes_that_start_together_one_makes_it_and_all_have_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "weights"
    said = [process.communicate()[0].split() for process in [maker(path, 0.3) for _ in range(6)]]
    assert sorted(said) == [["making", "whole"]] + [["whole"]] * 5
    assert list(path.parent.iterdir()) == [path]


def test_where_the_maker_is_killed_the_next_one_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    first = maker(path, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "making\n"
    second = maker(path, 0)
    first.kill()
    assert second.communicate()[0].split() == ["making", "whole"]
    first.wait()


def test_where_making_fails_the_error_is_told_and_the_next_one_tries(tmp_path: Path) -> None:
    path = tmp_path / "weights"

    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        made_once(path, full)
    assert made_once(path, lambda: path.write_text("whole"))
    assert not made_once(path, full)


def test_a_wait_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told = tmp_path / "weights", []
    lock = try_lock(tmp_path / ".weights.lock")
    assert lock is not None

    def hear(text: str, *values: object) -> None:
        told.append(text % values)
        os.close(lock)

    monkeypatch.setattr("sawbench.core.files.log.info", hear)
    assert made_once(path, lambda: path.write_text("whole"))
    assert len(told) == 1
    assert "waiting" in told[0]


def test_who_comes_just_after_it_was_made_leaves_no_lock_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw nothing there, and then the maker ended, and took its lock away."""
    path, exists = tmp_path / "weights", Path.exists
    looks: list[bool] = []

    def late(self: Path) -> bool:
        looks.append(exists(self))
        if len(looks) == 1:
            path.write_text("whole")
        return looks[-1]

    monkeypatch.setattr(Path, "exists", late)
    assert not made_once(path, lambda: path.write_text("made again"))
    assert (looks, path.read_text(), list(tmp_path.iterdir())) == ([False, True], "whole", [path])

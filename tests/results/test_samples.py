"""samples.jsonl survives kills, full disks and reopening byte for byte."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sawbench.results.samples import JsonlSink, read_samples

WRITER = """
import sys
from pathlib import Path
from sawbench.results.samples import JsonlSink
sink = JsonlSink(Path(sys.argv[1]))
for number in range(len(sink.done), int(sys.argv[2])):
    sink.add(f"item-{number}", {"text": "x" * (number % 701), "value": number / 7})
"""

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sawbench.results.samples import JsonlSink
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sink = JsonlSink(Path(sys.argv[1]))
sink.add("small", {"text": "x"})
try:
    sink.add("large", {"text": "y" * 5000})
except OSError:
    sink.add("after", {"text": "z"})
    sys.exit(0)
sys.exit(1)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def test_what_was_added_is_done_after_reopening(path: Path) -> None:
    sample = {"text": "línea\n\r\u2028 \ud800", "kl": 0.1, "tokens": [1, 2], "nested": {"a": None}}
    JsonlSink(path).add("a", sample)
    assert dict(JsonlSink(path).done) == {"a": sample} == read_samples(path)


def test_a_sample_reads_the_same_in_the_run_that_made_it_and_in_the_next(path: Path) -> None:
    sink = JsonlSink(path)
    sink.add("a", {"tokens": (1, 2), "by_layer": {3: 0.5}})
    assert dict(sink.done) == dict(JsonlSink(path).done)


def test_every_torn_end_is_dropped_and_the_rest_kept_byte_for_byte(path: Path) -> None:
    sink = JsonlSink(path)
    sink.add("a", {"text": "first"})
    sink.add("b", {"text": "second"})
    whole = path.read_bytes()
    first = whole[: whole.index(b"\n") + 1]
    for cut in range(len(first), len(whole)):
        path.write_bytes(whole[:cut])
        assert list(JsonlSink(path).done) == ["a"]
        assert path.read_bytes() == first


def test_zeros_that_a_power_failure_leaves_are_dropped(path: Path) -> None:
    JsonlSink(path).add("a", {"x": 1})
    kept = path.read_bytes()
    path.write_bytes(kept + b"\0" * 100)
    assert list(JsonlSink(path).done) == ["a"]
    assert path.read_bytes() == kept


def test_a_broken_line_in_the_middle_is_an_error_and_changes_nothing(path: Path) -> None:
    path.write_bytes(b'{"id": "a"}\n{"id": \n{"id": "c"}\n')
    before = path.read_bytes()
    with pytest.raises(ValueError, match="line 2"):
        JsonlSink(path)
    assert path.read_bytes() == before


def test_a_sample_is_never_overwritten(path: Path) -> None:
    sink = JsonlSink(path)
    sink.add("a", {"x": 1})
    with pytest.raises(ValueError, match="already written"):
        sink.add("a", {"x": 2})
    with pytest.raises(ValueError, match="id"):
        sink.add("b", {"id": "c"})
    assert read_samples(path) == {"a": {"x": 1}}


def test_a_sample_that_json_cannot_hold_leaves_no_trace(path: Path) -> None:
    sink = JsonlSink(path)
    with pytest.raises(TypeError):
        sink.add("a", {"x": object()})
    sink.add("a", {"x": 1})
    assert read_samples(path) == {"a": {"x": 1}}


def test_a_full_disk_leaves_whole_lines_only(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], check=False).returncode == 0
    assert list(read_samples(path)) == ["small", "after"]
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["small", "after"]


def test_sigkill_in_the_middle_loses_nothing_that_was_written(path: Path) -> None:
    for _ in range(3):
        before = path.read_bytes() if path.exists() else b""
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "1000000"])
        _wait_until_longer(path, len(before) + 2000)
        writer.kill()
        writer.wait()
        done = JsonlSink(path).done
        assert path.read_bytes().startswith(before)
        assert list(done) == [f"item-{n}" for n in range(len(done))]
        assert all(sample["value"] == n / 7 for n, sample in enumerate(done.values()))
    wanted = str(len(done) + 5)
    subprocess.run([sys.executable, "-c", WRITER, str(path), wanted], check=True)
    assert len(read_samples(path)) == int(wanted)


def _wait_until_longer(path: Path, size: int) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < deadline, "the writer wrote nothing"
        time.sleep(0.005)  # the writer is another process: its file is all that it says

"""samples.jsonl: one line a sample, on disk before ``add`` returns, kept byte for byte by every later run."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sawbench.core.files import sync_folder


class JsonlSink:
    """A cell's SampleSink. A line is ``{"id": sample_id, **sample}``; a torn last line is dropped on opening.

    Raises ValueError on a broken line in the middle of the file, on a second sample of one id (nothing is ever
    overwritten) and on a sample with a field ``id`` of its own.
    """

    def __init__(self, path: Path) -> None:
        self._done: dict[str, Mapping[str, Any]] = {}
        created = not path.exists()
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if created:
            sync_folder(path.parent)
        self._size = self._recover(path)

    @property
    def done(self) -> Mapping[str, Mapping[str, Any]]:
        return MappingProxyType(self._done)

    def add(self, sample_id: str, sample: Mapping[str, Any]) -> None:
        """Append one sample durably; where the disk refuses (full, quota), the file is as it was and OSError rises."""
        if sample_id in self._done or "id" in sample:
            raise ValueError(f"sample {sample_id}: already written, or it carries a field 'id'")
        line = (json.dumps({"id": sample_id, **sample}) + "\n").encode()
        record = json.loads(line)  # as a later run will read it: a resumed table equals an undisturbed one
        try:
            _write_all(self._handle, line)
            os.fsync(self._handle)
        except BaseException:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += len(line)
        self._done[record.pop("id")] = record

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _recover(self, path: Path) -> int:
        """Read what is there, cut a torn end off, and return the size kept."""
        self._done, kept = _parse(path)
        os.ftruncate(self._handle, kept)
        return kept


def read_samples(path: Path) -> dict[str, Mapping[str, Any]]:
    """Samples by id, without changing the file (a torn last line is left where it is)."""
    return _parse(path)[0] if path.exists() else {}


def _parse(path: Path) -> tuple[dict[str, Mapping[str, Any]], int]:
    done: dict[str, Mapping[str, Any]] = {}
    lines = path.read_bytes().splitlines(keepends=True)
    kept = 0
    for number, line in enumerate(lines, 1):
        record = _decode(line)
        if record is None and number == len(lines):
            break
        if record is None or record["id"] in done:
            raise ValueError(f"{path}: line {number} is broken or repeats an id")
        done[record.pop("id")] = record
        kept += len(line)
    return done, kept


def _decode(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line, or None."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "id" in record else None


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]

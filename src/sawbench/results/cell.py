"""One cell of a study: a folder whose name follows from what is measured, and the files that a run leaves in it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from sawbench.core.files import try_lock, write_atomic
from sawbench.core.records import Metric, TaskResult
from sawbench.results.samples import JsonlSink


class Cell:
    """``results/runs/<label>-<hash>/{config.yaml, environment.json, samples.jsonl, metrics.json}``.

    Reading is free. Writing needs ``claim()``, which one living process at a time can hold; a holder that dies,
    by SIGKILL too, loses it at once, and the next one goes on from the samples on disk.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = identity
        self._lock: int | None = None
        self._sink: JsonlSink | None = None

    @property
    def run(self) -> str:
        """The run id: label and hash."""
        return self.folder.name

    def claim(self) -> bool:
        """Take the cell for this process; False while another living one holds it. Writes config.yaml the first time.

        Raises ValueError where the folder belongs to another identity.
        """
        if self._lock is not None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = try_lock(self.folder / ".lock")
        if self._lock is None:
            return False
        config = self.folder / "config.yaml"
        if not config.exists():
            write_atomic(config, yaml.safe_dump(dict(self.identity), sort_keys=False, allow_unicode=True))
        elif yaml.safe_load(config.read_text()) != self.identity:
            self.release()
            raise ValueError(f"{config} describes another run than the one that its folder is named after")
        return True

    def release(self) -> None:
        """Give the cell up; what was written stays."""
        if self._sink is not None:
            self._sink.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = self._sink = None

    @property
    def sink(self) -> JsonlSink:
        """The samples made so far, open for more."""
        self._require_claim()
        if self._sink is None:
            self._sink = JsonlSink(self.folder / "samples.jsonl")
        return self._sink

    def environment(self, record: Mapping[str, Any]) -> None:
        """Add where and how this attempt runs to environment.json: a list, since a resumed cell has several."""
        self._require_claim()
        write_atomic(self.folder / "environment.json", _json([*self.attempts(), dict(record)]))

    def attempts(self) -> list[dict[str, Any]]:
        """The environments of every process that worked on this cell, oldest first."""
        path = self.folder / "environment.json"
        return json.loads(path.read_text()) if path.exists() else []

    def finish(self, result: TaskResult, *, replace: bool = False) -> None:
        """Write metrics.json in one step. FileExistsError where it is there already, unless ``replace`` (rescoring)."""
        self._require_claim()
        path = self.folder / "metrics.json"
        if path.exists() and not replace:
            raise FileExistsError(path)
        write_atomic(path, _json({"metrics": [asdict(m) for m in result.metrics], "tables": dict(result.tables)}))

    @property
    def finished(self) -> bool:
        return (self.folder / "metrics.json").exists()

    def result(self) -> TaskResult:
        """What ``finish`` wrote. FileNotFoundError before that."""
        record = json.loads((self.folder / "metrics.json").read_text())
        return TaskResult(tuple(Metric(**m) for m in record["metrics"]), record["tables"])

    def _require_claim(self) -> None:
        if self._lock is None:
            raise RuntimeError(f"{self.run}: claim() the cell before writing to it")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"

"""results/throughput/X.csv: a row a cell, there as soon as the cell ends, replaced when it is measured again."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sawbench.core.files import locked, try_lock, write_atomic
from sawbench.results import environment
from sawbench.results.tidy import pairs, portable, read_csv, to_csv


def run_id(identity: Mapping[str, Any]) -> str:
    """12 hex digits of everything that can change a cell's numbers."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def provenance(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Where and how, for every row: date, commit, card, versions, and the command without this machine's folders
    (``arguments`` after ``python -m sawbench``, where they are not this process's own)."""
    record = environment(arguments)
    machine = record["machine"]
    return {
        "device": "; ".join(machine["gpus"]) or machine["cpu"],
        "date": record["date"],
        "commit": record["commit"],
        "dirty": record["dirty"],
        "versions": pairs(record["versions"]),
        "command": portable(record["command"]),
    }


class Ledger:
    """Rows of one CSV file, by ``run``. Several processes may share it: each cell is claimed by one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.locks = self.path.parents[1] / "runs" / ".throughput"

    def done(self, run: str) -> list[dict[str, Any]]:
        """The rows of ``run`` if it was measured; a row with an error is none."""
        return [dict(row) for row in read_csv(self.path) if row.get("run") == run and not row.get("error")]

    @contextmanager
    def claim(self, run: str) -> Iterator[bool]:
        """Whether this process may measure ``run``; the claim dies with its holder."""
        self.locks.mkdir(parents=True, exist_ok=True)
        lock = try_lock(self.locks / run)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def write(self, run: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put ``rows`` in the place of earlier ones of ``run``; the file is whole at every moment."""
        self.locks.mkdir(parents=True, exist_ok=True)
        with locked(self.locks / f"{self.path.stem}.csv"):
            kept: list[Mapping[str, Any]] = [row for row in read_csv(self.path) if row.get("run") != run]
            write_atomic(self.path, to_csv([*kept, *({**row, "run": run} for row in rows)]))

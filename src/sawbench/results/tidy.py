"""Cells to tidy CSV files: metrics.csv, runs.csv and one file a table, every row with the run that it comes from."""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sawbench.core.files import locked, write_atomic
from sawbench.results.cell import Cell
from sawbench.results.store import RunStore, name_of

KEYS = ("model", "method", "options", "task", "engine", "attention", "prefill", "dtypes", "run")
Row = Mapping[str, Any]


def write_tidy(store: RunStore, root: Path | None = None) -> list[Path]:
    """Bring the CSV files under ``root`` (the store's own by default) up to date and return their paths.

    Rows of a finished cell replace those of the same run; rows of runs that are not on this disk stay, since
    ``runs/`` is not in the repository but the CSV files are.
    """
    root = store.root if root is None else Path(root)
    finished = [cell for cell in store.cells() if cell.finished]
    files: dict[str, list[Row]] = defaultdict(list)
    for cell in finished:
        for name, rows in _rows(cell).items():
            files[name] += rows
    replaced = {cell.run for cell in finished}
    with locked(root / "runs" / ".tidy.lock"):
        return [_merge(root / f"{name}.csv", rows, replaced) for name, rows in sorted(files.items())]


def key_columns(cell: Cell) -> dict[str, str]:
    """The columns that name a cell; what the engine says of itself comes from the last attempt's record."""
    identity, attempts = cell.identity, cell.attempts()
    said = attempts[-1].get("engine", {}) if attempts else {}
    said = {**_mapping(identity.get("engine")), **_mapping(said)}
    return {
        "model": name_of(identity.get("model")),
        "method": name_of(identity.get("method")),
        "options": pairs(_mapping(_mapping(identity.get("method")).get("options"))),
        "task": name_of(identity.get("task")),
        "engine": name_of(identity.get("engine")) or str(said.get("engine", "")),
        "attention": str(said.get("attention", "")),
        "prefill": str(said.get("prefill", "")),
        "dtypes": pairs(_mapping(said.get("dtypes"))) or pairs({k: v for k, v in said.items() if k.endswith("dtype")}),
        "run": cell.run,
    }


def pairs(mapping: Mapping[str, Any]) -> str:
    """``a=1 b=2``, as an option is typed."""
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in mapping.items())


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file as strings; an absent file has none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _rows(cell: Cell) -> dict[str, list[Row]]:
    keys, result = key_columns(cell), cell.result()
    rows: dict[str, list[Row]] = {
        "metrics": [{**keys, **_renamed(metric.row())} for metric in result.metrics],
        "runs": [{**keys, **_attempt(cell)}],
    }
    for table, content in result.tables.items():
        rows[f"{keys['task']}_{table}"] = [{**keys, **row} for row in content]
    return rows


def _renamed(row: Row) -> dict[str, Any]:
    return {"metric" if key == "name" else key: value for key, value in row.items()}


def _attempt(cell: Cell) -> dict[str, Any]:
    """Command, commit, date and machine of the attempt that finished the cell, and what it did to K and to V."""
    last = cell.attempts()[-1] if cell.attempts() else {}
    machine = _mapping(last.get("machine"))
    return {
        "weights": str(_mapping(cell.identity.get("model")).get("weights", "")),
        "seed": cell.identity.get("seed"),
        "date": last.get("date"),
        "commit": last.get("commit"),
        "dirty": last.get("dirty"),
        "cpu": machine.get("cpu"),
        "cores": machine.get("cores"),
        "gpus": "; ".join(machine.get("gpus") or ()),
        "versions": pairs(_mapping(last.get("versions"))),
        **{side: "; ".join(parts) for side, parts in _mapping(last.get("stored")).items()},
        "servable": last.get("servable"),
        "servable_reason": last.get("servable_reason"),
        "attempts": len(cell.attempts()),
        "command": portable(str(last.get("command", ""))),
    }


def portable(command: str) -> str:
    """A command with the folders of absolute paths left out: they mean nothing on the reader's machine."""
    return re.sub(r"(?<=[=\s'\"])/(?:[^\s'\",/]+/)*(?=[^\s'\",/]+)", ".../", command)


def _merge(path: Path, rows: list[Row], replaced: set[str]) -> Path:
    kept: list[Row] = [row for row in read_csv(path) if row.get("run") not in replaced]
    together = sorted([*kept, *rows], key=lambda row: [str(row.get(key, "")) for key in KEYS])
    write_atomic(path, to_csv(together))
    return path


def to_csv(rows: Iterable[Row]) -> str:
    """CSV text with the key columns first and every other column in order of appearance."""
    rows = list(rows)
    present = dict.fromkeys(column for row in rows for column in row)
    columns = [*(key for key in KEYS if key in present), *(c for c in present if c not in KEYS)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: _text(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _text(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

"""The folder of all cells, addressed by content."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sawbench.results.cell import Cell


class RunStore:
    """Cells under ``root/runs``; ``root`` (usually ``results``) also takes the tidy CSV files."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.runs = self.root / "runs"

    def cell(self, identity: Mapping[str, Any]) -> Cell:
        """The cell of everything that can change its numbers: model, method, task, engine, seed, version.

        ``identity`` holds JSON values only (TypeError else) and neither paths of results nor batch size nor verbosity:
        equal identities, in any order of keys, share one folder. Nothing is written before ``claim``.
        """
        plain = json.loads(canonical(identity))
        return Cell(self.runs / f"{label(plain)}-{digest(plain)}", plain)

    def cells(self) -> Iterator[Cell]:
        """Every cell on disk, finished or not, by name."""
        for config in sorted(self.runs.glob("*/config.yaml")):
            yield Cell(config.parent, yaml.safe_load(config.read_text()))


def canonical(identity: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces; NaN and objects that JSON lacks are refused."""
    return json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(identity: Mapping[str, Any]) -> str:
    """First 12 hex digits of the canonical JSON's SHA-256."""
    return hashlib.sha256(canonical(identity).encode()).hexdigest()[:12]


def label(identity: Mapping[str, Any]) -> str:
    """Names of model, method and task, made safe for a file name: for the reader alone, the hash tells cells apart."""
    names = [name_of(identity.get(part)) for part in ("model", "method", "task")]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(n for n in names if n)) or "cell"


def name_of(part: object) -> str:
    """``name`` of a mapping, or the string itself."""
    if isinstance(part, Mapping):
        return str(part.get("name", ""))
    return "" if part is None else str(part)

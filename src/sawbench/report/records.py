"""The CSV files of a results folder, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from sawbench.results.tidy import KEYS

SETTING = ("engine", "attention", "prefill", "dtypes")


@dataclass(frozen=True)
class Number:
    """A measured value with its 95 % interval, where there is one, and the run that it comes from."""

    value: float
    low: float | None = None
    high: float | None = None
    run: str = ""

    def __mul__(self, factor: float) -> "Number":
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Number(self.value * factor, low, high, self.run)


@dataclass(frozen=True)
class Run:
    """One cell: its key columns and its metrics by name; ``conditions`` is what else its task says of it;
    ``unservable`` why pages cannot hold what its method stores, empty where they can, None where nobody said."""

    keys: Mapping[str, str]
    metrics: Mapping[str, Number]
    conditions: Mapping[str, str] = field(default_factory=dict)
    unservable: str | None = None

    @property
    def id(self) -> str:
        return self.keys["run"]

    @property
    def label(self) -> str:
        """Method and the options in which it differs from its file."""
        return f"{self.keys['method']} {self.keys['options']}".strip()

    @property
    def setting(self) -> str:
        """Everything beside method and model that two rows must share to be compared."""
        said = {**{key: self.keys[key] for key in SETTING if self.keys[key]}, **self.conditions}
        said["dtypes"] = said.get("dtypes", "").replace("compute_dtype=", "")
        return ", ".join(_phrase(key, value) for key, value in said.items() if value)


@dataclass(frozen=True)
class Study:
    """``tables`` holds every results/*.csv by stem; ``kernels`` and ``throughput`` those of their folders."""

    root: Path
    tables: Mapping[str, pd.DataFrame]
    paper: Mapping[str, pd.DataFrame]
    kernels: Mapping[str, pd.DataFrame]
    throughput: Mapping[str, pd.DataFrame]

    @classmethod
    def read(cls, root: Path) -> "Study":
        """Read what is there; an empty folder is an empty study."""
        folders = ("", "paper", "kernels", "throughput")
        return cls(root, *({path.stem: read_frame(path) for path in sorted((root / f).glob("*.csv"))} for f in folders))

    def table(self, name: str) -> pd.DataFrame:
        """A table by stem, empty where it is absent."""
        return self.tables.get(name, pd.DataFrame(columns=[*KEYS]))

    def runs(self, task: str | None = None) -> list[Run]:
        """Every cell of metrics.csv, of one task or of all, in the order of the file."""
        return [run for run in self._runs if task is None or run.keys["task"] == task]

    @cached_property
    def _runs(self) -> list[Run]:
        return [self._run(rows) for _, rows in self.table("metrics").groupby("run", sort=False)]

    def _run(self, rows: pd.DataFrame) -> Run:
        keys = {key: str(rows.iloc[0][key]) for key in KEYS}
        metrics = {
            str(row["metric"]): Number(float(row["value"]), _bound(row["low"]), _bound(row["high"]), keys["run"])
            for _, row in rows.iterrows()
            if pd.notna(row["value"])
        }
        return Run(keys, metrics, self._conditions(keys), self._unservable(keys["run"]))

    def _unservable(self, run: str) -> str | None:
        runs = self.table("runs")
        if "servable" not in runs:
            return None
        for _, said in runs[runs["run"] == run].iterrows():
            return {"True": "", "False": str(said["servable_reason"])}.get(str(said["servable"]))
        return None

    def _conditions(self, keys: Mapping[str, str]) -> dict[str, str]:
        """What the task's table ``conditions`` adds to the key columns."""
        table = self.table(f"{keys['task']}_conditions")
        found = table[table["run"] == keys["run"]].drop(columns=[*KEYS, "compute_dtype"], errors="ignore")
        return {} if found.empty else {str(k): str(v) for k, v in found.iloc[0].dropna().items()}


def read_frame(path: Path) -> pd.DataFrame:
    """A CSV file whose key columns are text, empty where nothing is written."""
    frame = pd.read_csv(path, dtype=dict.fromkeys(KEYS, "str"))
    present = [key for key in KEYS if key in frame]
    frame[present] = frame[present].fillna("")
    return frame


def _bound(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload,arg-type]


def _phrase(key: str, value: str) -> str:
    return value if key in SETTING else f"{key.replace('_', ' ')} {value}"


def servable(runs: Sequence[Run]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """A column more for a table of ``runs``: its head, each run's cell, and a note of the reasons. All are empty where
    no run says whether pages can hold what its method stores."""
    if all(run.unservable is None for run in runs):
        return [], {run.id: [] for run in runs}, []
    cells = {run.id: ["" if run.unservable is None else "no" if run.unservable else "yes"] for run in runs}
    reasons = dict.fromkeys(f"{run.keys['method']}, {run.unservable}" for run in runs if run.unservable)
    return ["servable"], cells, [f"Not servable from pages: {'; '.join(reasons)}."] if reasons else []

"""The CSV files of a results folder, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from sawbench.report.naming import telling
from sawbench.results.tidy import KEYS

SETTING = ("engine", "attention", "prefill", "dtypes")
MADE = ("weights", "key", "value", "versions", "commit", "date")
"""What can tell runs of one method and setting apart, the weightiest first."""


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
    """One cell: its key columns and those of its metrics that have a value; ``conditions`` is what else must be alike
    where runs are compared; ``unservable`` why pages cannot hold what its method stores, empty where they can, None
    where nobody said; ``headline`` the metric that is its score; ``apart`` how it differs from runs of its label."""

    keys: Mapping[str, str]
    metrics: Mapping[str, Number]
    conditions: Mapping[str, str] = field(default_factory=dict)
    unservable: str | None = None
    headline: str = "score"
    apart: str = ""

    @property
    def id(self) -> str:
        return self.keys["run"]

    @property
    def label(self) -> str:
        """Method, the options in which it differs from its file, and what tells it from a run of the same name."""
        apart = f"({self.apart})" if self.apart else ""
        return " ".join(filter(None, (self.keys["method"], self.keys["options"], apart)))

    @property
    def score(self) -> Number | None:
        """The value of ``headline``; None where no answer was scored."""
        return self.metrics.get(self.headline)

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

    def groups(self, task: str) -> dict[tuple[str, str], list[Run]]:
        """Runs of a task that may be compared: those of one model in one setting, by (model, setting)."""
        found: dict[tuple[str, str], list[Run]] = {}
        for run in self.runs(task):
            found.setdefault((run.keys["model"], run.setting), []).append(run)
        return found

    @cached_property
    def _runs(self) -> list[Run]:
        runs = [self._run(rows) for _, rows in self.table("metrics").groupby("run", sort=False)]
        alike: dict[tuple[str, ...], list[Run]] = {}
        for run in runs:
            alike.setdefault((run.keys["model"], run.keys["task"], run.setting, run.label), []).append(run)
        apart = {run.id: words for same in alike.values() for run, words in self._apart(same)}
        return [replace(run, apart=apart[run.id]) for run in runs]

    def _run(self, rows: pd.DataFrame) -> Run:
        keys = {key: str(rows.iloc[0][key]) for key in KEYS}
        metrics = {
            str(row["metric"]): Number(float(row["value"]), _bound(row["low"]), _bound(row["high"]), keys["run"])
            for _, row in rows.iterrows()
            if pd.notna(row["value"])
        }
        headline = str(rows.iloc[0]["metric"])
        return Run(keys, metrics, self._conditions(keys), self._unservable(keys["run"]), headline)

    def _apart(self, same: Sequence[Run]) -> list[tuple[Run, str]]:
        """What tells each run from the others of its label: nothing of one that is alone."""
        made = [
            ", ".join([*(f"{k} {self._made(run.id).get(k, '')}".replace(",", ";") for k in MADE), f"run {run.id}"])
            for run in same
        ]
        return [(run, ", ".join(words)) for run, words in zip(same, telling(made), strict=True)]

    @cached_property
    def _records(self) -> dict[str, dict[str, str]]:
        rows = self.table("runs").drop_duplicates("run").set_index("run")
        return {str(run): {str(k): str(v) for k, v in row.dropna().items()} for run, row in rows.iterrows()}

    def _made(self, run: str) -> Mapping[str, str]:
        """The run's row of runs.csv, what it does not say left out."""
        return self._records.get(run, {})

    def _unservable(self, run: str) -> str | None:
        said = self._made(run)
        return {"True": "", "False": said.get("servable_reason", "")}.get(said.get("servable", ""))

    def _conditions(self, keys: Mapping[str, str]) -> dict[str, str]:
        """What the task's table ``conditions`` adds to the key columns; the questions that its other tables hold; the
        seed."""
        table = self.table(f"{keys['task']}_conditions")
        found = table[table["run"] == keys["run"]].drop(columns=[*KEYS, "compute_dtype"], errors="ignore")
        said = {} if found.empty else {str(k): str(v) for k, v in found.iloc[0].dropna().items()}
        seed = self._made(keys["run"]).get("seed", "")
        return said | self._asked.get(keys["run"], {}) | ({"seed": seed} if seed else {})

    @cached_property
    def _asked(self) -> dict[str, dict[str, str]]:
        """By run the number of items of a table of scores, or the cells of a table of retrieval: length, depth, ..."""
        found: dict[str, dict[str, str]] = {}
        for name, frame in self.tables.items():
            if name.endswith("_scores"):
                items = frame[[column for column in ("run", "metric", "item") if column in frame]]
                counts = items.drop_duplicates()["run"].value_counts()
                found |= {str(run): {"items": str(count)} for run, count in counts.items()}
            elif {"length", "score", "n"} <= set(frame.columns):
                asked = frame.drop(columns=[*KEYS, "score", "low", "high"], errors="ignore")
                for run, rows in asked.rename(columns={"n": "questions"}).groupby(frame["run"]):
                    found[str(run)] = {str(axis): " ".join(map(str, rows[axis].dropna().unique())) for axis in rows}
        return found


def read_frame(path: Path) -> pd.DataFrame:
    """A CSV file whose key columns and seeds are text, the former empty where nothing is written."""
    frame = pd.read_csv(path, dtype=dict.fromkeys((*KEYS, "seed"), "str"))
    present = [key for key in KEYS if key in frame]
    frame[present] = frame[present].fillna("")
    return frame


def _bound(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload,arg-type]


def _phrase(key: str, value: str) -> str:
    return value if key in SETTING else f"{key.replace('_', ' ')} {value}"


def by_score(runs: Sequence[Run]) -> list[Run]:
    """By falling score; runs without one come last."""
    return sorted(runs, key=lambda run: -run.score.value if run.score else float("inf"))


def servable(runs: Sequence[Run]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """A column more for a table of ``runs``: its head, each run's cell, and a note of the reasons. All are empty where
    no run says whether pages can hold what its method stores."""
    if all(run.unservable is None for run in runs):
        return [], {run.id: [] for run in runs}, []
    cells = {run.id: ["" if run.unservable is None else "no" if run.unservable else "yes"] for run in runs}
    reasons = dict.fromkeys(f"{run.keys['method']}, {run.unservable}" for run in runs if run.unservable)
    return ["servable"], cells, [f"Not servable from pages: {'; '.join(reasons)}."] if reasons else []

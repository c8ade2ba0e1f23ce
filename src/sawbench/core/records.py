"""The tidy row that every result becomes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Metric:
    """One number of a cell: ``low`` and ``high`` bound its 95 % interval where one was computed."""

    name: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    n: int | None = None

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TaskResult:
    """What a task hands back: headline metrics, and tidy tables (CSV name -> rows) that go beside them.

    Samples are not here: a task hands each one to the run's sample sink as soon as it is made.
    """

    metrics: tuple[Metric, ...]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)


def pool_gigabytes(pool_bytes: float) -> int:
    """As what a pool counts where rows are compared: pools of one budget, in pages of several sizes, are one."""
    return round(pool_bytes / 1e9)

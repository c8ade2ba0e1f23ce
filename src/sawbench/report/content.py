"""What a report is made of: tables and drawings, which Markdown and HTML write each in its way."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from sawbench.report.records import Number

Value = str | Number | None


@dataclass(frozen=True)
class Table:
    """Rows of values under ``columns``; ``notes`` go below. ``name`` is the file's stem."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption, and the CSV files that it is drawn from."""

    name: str
    title: str
    caption: str
    figure: Figure
    sources: Sequence[str]


def digits(value: float) -> str:
    """Four significant digits; powers of ten below a thousandth."""
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def text_of(value: Value) -> str:
    """A value as plain text, with its interval; nothing measured is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if value.low is None or value.high is None:
        return digits(value.value)
    return f"{digits(value.value)} [{digits(value.low)}, {digits(value.high)}]"


def texts(frame: pd.DataFrame, columns: Sequence[str]) -> list[list[Value]]:
    """Rows of a frame as text, empty where nothing is written."""
    return [["" if pd.isna(value) else str(value) for value in row] for row in frame[list(columns)].to_numpy(object)]

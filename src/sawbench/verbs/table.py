"""Plain text tables for a terminal."""

import shutil
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned on the left, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def fitted(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table, or its transpose where only that fits the terminal's width."""
    upright = table(header, rows)
    turned_header, *turned_rows = zip(header, *rows, strict=True)
    turned = table(turned_header, turned_rows)
    columns = shutil.get_terminal_size((120, 24)).columns
    return turned if _width(upright) > columns and _width(turned) < _width(upright) else upright


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))

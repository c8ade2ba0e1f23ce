"""Plain text tables for a terminal."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned on the left, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

"""Tables as Markdown files."""

from sawbench.report.content import Table, text_of


def markdown(table: Table) -> str:
    """A title, a pipe table with numbers to the right, and the notes."""
    numeric = [any(not isinstance(row[at], str) for row in table.rows) for at in range(len(table.columns))]
    lines = [
        f"# {table.title}",
        "",
        _line(table.columns),
        _line(["---:" if right else "---" for right in numeric]),
        *(_line([text_of(value) for value in row]) for row in table.rows),
    ]
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)]) + "\n"


def _line(cells: object) -> str:
    assert isinstance(cells, list | tuple)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

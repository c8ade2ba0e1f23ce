"""The whole report of a results folder: tables/*.md, figures/*.{png,svg}."""

from collections.abc import Iterator
from pathlib import Path

from sawbench.report import fidelity, keys
from sawbench.report.content import Drawing, Table
from sawbench.report.markdown import markdown
from sawbench.report.records import Study
from sawbench.report.style import save
from sawbench.results.files import write_atomic


def build(root: Path) -> list[Path]:
    """Write the report of ``root`` and return its files."""
    study = Study.read(root)
    return [*_tables(root, list(tables(study))), *_figures(root, list(drawings(study)))]


def tables(study: Study) -> Iterator[Table]:
    yield from fidelity.tables(study)


def drawings(study: Study) -> Iterator[Drawing]:
    yield from fidelity.drawings(study)
    yield from keys.drawings(study)


def _tables(root: Path, found: list[Table]) -> Iterator[Path]:
    for table in found:
        path = root / "tables" / f"{table.name}.md"
        write_atomic(path, markdown(table))
        yield path


def _figures(root: Path, found: list[Drawing]) -> Iterator[Path]:
    for drawing in found:
        yield from save(drawing.figure, root / "figures" / drawing.name)

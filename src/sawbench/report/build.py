"""The whole report of a results folder: tables/*.md, figures/*.{png,svg} and report.html."""

from collections.abc import Iterator
from pathlib import Path

from sawbench.core.files import write_atomic
from sawbench.report import accuracy, decode_steps, fidelity, kernels, keys, published, retrieval, sensitivity, serving
from sawbench.report.content import Drawing, Table
from sawbench.report.markdown import markdown
from sawbench.report.page import Section, methods, page, run_table
from sawbench.report.records import Study
from sawbench.report.style import save


def build(root: Path) -> list[Path]:
    """Write the report of ``root`` and return its files."""
    study = Study.read(root)
    sections = list(contents(study))
    files = [path for section in sections for part in section.content for path in _write(root, part)]
    document = root / "report.html"
    write_atomic(document, page(study, [*sections, *appendix(study)]))
    return [*files, document]


def contents(study: Study) -> Iterator[Section]:
    """What has files of its own beside the page."""
    yield Section("fidelity", "Fidelity", [*fidelity.contents(study)])
    yield Section("keys", "Key outliers", [*keys.drawings(study)])
    yield Section("sensitivity", "Sensitive heads", [*sensitivity.drawings(study)])
    yield Section("accuracy", "Accuracy", [*accuracy.tables(study)])
    yield Section("retrieval", "Long context", [*retrieval.contents(study)])
    yield Section("throughput", "Throughput", [*serving.contents(study), *decode_steps.contents(study)])
    yield Section("kernels", "Kernels", [*kernels.contents(study)])
    yield Section("published", "Published and measured", [*published.tables(study), *published.inconsistencies(study)])


def appendix(study: Study) -> Iterator[Section]:
    """What the page alone holds: everything again by method, and how each run was made."""
    for table in methods(study):
        yield Section(f"section-{table.name}", table.title, [table])
    yield Section("all-runs", "Runs", run_table(study))


def _write(root: Path, part: Table | Drawing) -> list[Path]:
    if isinstance(part, Drawing):
        return save(part.figure, root / "figures" / part.name)
    path = root / "tables" / f"{part.name}.md"
    write_atomic(path, markdown(part))
    return [path]

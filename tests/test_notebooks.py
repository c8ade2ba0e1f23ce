"""The notebooks run from top to bottom on what results/ holds, and are kept without outputs."""

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["01_why_rotation_works", "02_accuracy", "03_throughput"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_kept(path: Path) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_every_question_is_answered(path: Path) -> None:
    """By a figure, a table, or the command that measures one."""
    reason = "notebooks need pip install 'sawbench[notebooks]'"
    nbclient, nbformat = (pytest.importorskip(name, reason=reason) for name in ("nbclient", "nbformat"))
    pytest.importorskip("ipykernel", reason=reason)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    asked = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith("show(")]
    assert asked
    assert all(cell.outputs for cell in asked)

from pathlib import Path

import pytest

from helpers.study import made_up
from sawbench.report.build import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up results folder with its report; not to be changed."""
    root = made_up(tmp_path_factory.mktemp("study") / "results")
    build(root)
    return root


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The made-up results folder, without a report."""
    return made_up(tmp_path / "results")

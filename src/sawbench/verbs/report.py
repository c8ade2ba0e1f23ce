"""``report``: tables, figures and the page of a results folder."""

from pathlib import Path

from omegaconf import DictConfig

from sawbench.core.errors import UserError
from sawbench.report.build import build


def main(config: DictConfig) -> int:
    """Raises UserError where the folder holds no results."""
    root = Path(config.results)
    if not any(root.glob("**/*.csv")):
        raise UserError(
            f"results={config.results} holds no CSV files: measure something first (python -m sawbench run)"
        )
    for path in build(root):
        print(path)
    return 0

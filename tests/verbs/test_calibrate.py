"""The verb ``calibrate``: makes an artifact once, says what and where, and refuses in one line."""

from pathlib import Path

import pytest

from sawbench.cli import main


def calibrate(results: Path, *overrides: str) -> int:
    return main(["calibrate", "model=tiny", f"results={results}", *overrides])


def test_it_says_what_was_made_and_where_and_finds_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path, "method=kmeans", "method.options.centroids=4") == 0
    first = capsys.readouterr().out
    (artifact,) = (tmp_path / "calibration").glob("*.safetensors")
    assert first.startswith(f"made: {artifact}\n")
    assert "codebooks (1, 4, 2, 16)  2" in first
    assert "synthetic: True" in first
    assert calibrate(tmp_path, "method=kmeans", "method.options.centroids=4") == 0
    assert capsys.readouterr().out == first.replace("made:", "found:", 1)


def test_a_method_that_learns_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path, "method=bdr") == 0
    assert capsys.readouterr().out == "bdr needs no calibration\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("method=kmens", "method=kmens is not one of"),
        ("calibration=gpqa", "calibration=gpqa is not one of: paper, self, text"),
        ("calibration.text=missing.txt", "calibration.text=missing.txt cannot be read"),
        ("method.options.heads_per_codebook=3", "method.options.heads_per_codebook=3 is not one of"),
    ],
)
def test_what_is_refused_is_one_line_and_code_2(
    override: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, override) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1

"""``kernels``: refusals in one line, and rows that say what was measured."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from sawbench.cli import main
from sawbench.throughput.kernel_bench import SHAPES, Row
from sawbench.verbs import kernels


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 4 TB/s on which every kernel runs at the bound, a peer fails, and hessian is wrong."""

    def measured(cases: list, device: object, bandwidth: float) -> Iterator[Row]:
        for case in cases:
            row = Row(case.family, case.kernel, *vars(case.shape).values(), case.bytes, case.bytes / bandwidth * 1e6)
            if case.kernel == "hessian":
                yield replace(row, error=0.1, note="wrong: error 1.0e-01 above 5e-03")
            elif case.kernel == "sdpa_flash":
                yield replace(row, note="failed: no")
            else:
                yield replace(row, time_us=row.floor_us, tb_per_s=4.0, fraction=1.0, vs_bf16=1.0, error=0.0)

    monkeypatch.setattr(kernels, "measure_shape", measured)
    monkeypatch.setattr(kernels, "copy_bandwidth", lambda device: 4e12)
    for name, value in {"is_available": True, "current_device": 0, "get_device_name": "card"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["shapes=all", "families=[paged_decode,cooking]", "kernels=[int4,int5]"])
def test_unknown_names_are_refused_with_the_legal_ones(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", option]) == 2
    assert "is not one of" in capsys.readouterr().err


@pytest.mark.usefixtures("card")
def test_rows_land_in_a_file_and_are_replaced_when_measured_again(tmp_path: Path) -> None:
    arguments = ["kernels", "families=paged_decode", "kernels=[int4,sdpa_flash]", f"results={tmp_path}"]
    assert main(arguments) == main(arguments) == 0
    rows = pd.read_csv(tmp_path / "kernels" / "quick.csv")
    assert len(rows) == 2 * len(SHAPES["paged_decode"]["quick"])
    assert set(rows["kernel"]) == {"int4", "sdpa_flash"}
    assert rows.loc[rows["kernel"] == "sdpa_flash", "time_us"].isna().all()
    assert {"command", "commit", "date", "device", "copy_tb_per_s"} <= set(rows.columns)


@pytest.mark.usefixtures("card")
def test_a_wrong_kernel_of_ours_is_an_error_and_prints_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", "families=paged_decode", "kernels=hessian", f"results={tmp_path}"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hessian")]
    assert len(lines) == len(SHAPES["paged_decode"]["quick"])
    assert all(line.endswith("wrong: error 1.0e-01 above 5e-03") for line in lines)

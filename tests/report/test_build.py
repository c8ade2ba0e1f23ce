"""From CSV files to tables and figures: complete, traceable to runs, and the same bytes every time."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from sawbench.core.errors import UserError
from sawbench.report import fidelity
from sawbench.report.content import Drawing, Table
from sawbench.report.records import Study
from sawbench.report.style import save
from sawbench.verbs import report


def test_every_method_of_a_model_is_in_its_table_with_its_run(built: Path) -> None:
    text = (built / "tables" / "fidelity-toy-135m.md").read_text()
    for run in Study.read(built).runs("fidelity"):
        assert (run.id in text) == (run.keys["model"] == "toy-135m")
    assert "0.15 [0.12, 0.195]" in text
    assert text.index("| int4 |") < text.index("| bdr |") < text.index("| int8 |")


def test_figures_come_as_png_and_svg(built: Path) -> None:
    names = {"pareto-toy-135m", "pareto-toy-1.5b", "layers-toy-135m", "layers-toy-1.5b", "keys-toy"}
    figures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert figures <= {path.name for path in (built / "figures").iterdir()}
    assert all(path.stat().st_size > 1000 for path in (built / "figures").iterdir())


def test_the_same_csv_files_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    drawing = next(d for d in fidelity.contents(Study.read(built)) if isinstance(d, Drawing))
    for path in save(drawing.figure, tmp_path / drawing.name):
        assert path.read_bytes() == (built / "figures" / path.name).read_bytes()
    assert "<dc:date>" not in (built / "figures" / "pareto-toy-1.5b.svg").read_text()


def test_runs_of_another_setting_are_not_mixed(results: Path) -> None:
    metrics = results / "metrics.csv"
    lines = metrics.read_text().splitlines()
    chosen = [line for line in lines[1:] if "toy-1.5b" in line]
    other = [line.replace("quantized", "exact").replace("-fidelity-", "-exact-") for line in chosen]
    metrics.write_text("\n".join([*lines, *other]) + "\n")
    tables = {t.name: t for t in fidelity.contents(Study.read(results)) if isinstance(t, Table)}
    assert tables.keys() == {"fidelity-toy-135m", "fidelity-toy-1.5b-quantized", "fidelity-toy-1.5b-exact"}
    assert len(tables["fidelity-toy-1.5b-exact"].rows) == 4


def test_two_runs_of_one_name_are_two_rows_of_every_figure_and_table(results: Path) -> None:
    """Neither is averaged with the other, nor without a word of what tells it apart."""
    for path in (results / "metrics.csv", results / "fidelity_layers.csv", results / "runs.csv"):
        lines = path.read_text().splitlines()
        again = [line.replace("-bdr-", "-again-") for line in lines if "toy-1.5b-bdr-" in line]
        path.write_text("\n".join([*lines, *again]) + "\n")
    conditions = results / "fidelity_conditions.csv"
    lines = conditions.read_text().splitlines()
    conditions.write_text("\n".join([*lines, *(x.replace("-bdr-", "-again-") for x in lines if "-bdr-" in x)]) + "\n")
    parts = {part.name: part for part in fidelity.contents(Study.read(results))}
    table, layers = parts["fidelity-toy-1.5b"], parts["layers-toy-1.5b"]
    assert isinstance(table, Table)
    assert isinstance(layers, Drawing)
    named = [str(row[0]) for row in table.rows]
    assert len(set(named)) == len(named) == 5
    assert {text.get_text() for text in layers.figure.axes[0].get_yticklabels()} == set(named)


def test_a_method_without_error_and_one_without_bits_do_not_break_the_figure(results: Path) -> None:
    metrics = results / "metrics.csv"
    bf16, int4 = (
        next(r for r in Study.read(results).runs() if r.id.startswith(f"toy-1.5b-{m}-")) for m in ("bf16", "int4")
    )
    lines = [line for line in metrics.read_text().splitlines() if not (int4.id in line and ",bits_per_value," in line)]
    metrics.write_text("\n".join(_exact(line) if bf16.id in line else line for line in lines) + "\n")
    assert "pareto-toy-1.5b" in {part.name for part in fidelity.contents(Study.read(results))}


def _exact(line: str) -> str:
    start, found, _ = line.partition(",kl,")
    return f"{start},kl,0,nats,0,0,9" if found else line


def test_an_empty_folder_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no CSV"):
        report.main(OmegaConf.create({"results": str(tmp_path)}))


def test_the_verb_prints_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.csv").write_text(HEADER + "m,int4,,fidelity,hf,naive,quantized,,m-int4,kl,0.1,nats,,,\n")
    assert report.main(OmegaConf.create({"results": str(tmp_path)})) == 0
    assert str(tmp_path / "tables" / "fidelity-m.md") in capsys.readouterr().out.splitlines()


HEADER = "model,method,options,task,engine,attention,prefill,dtypes,run,metric,value,unit,low,high,n\n"


def test_the_report_needs_no_torch() -> None:
    code = "import sys, sawbench.report.build, sawbench.verbs.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

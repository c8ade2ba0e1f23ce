"""Tables and figures of the paper as cells: complete, composed, priced, run, found again, failed in rows."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from sawbench import cli
from sawbench.config import choices, compose, instantiate
from sawbench.core.errors import UserError
from sawbench.report.published import MODELS, SHIPPED, ours
from sawbench.tasks.documents import read_file
from sawbench.verbs import bench, experiment_cells, run
from sawbench.verbs.experiment import described, plan
from sawbench.verbs.experiment_cells import Cell, cells_of, data_file
from sawbench.verbs.experiment_cost import QUESTIONS, answers, seconds

ROOT = Path(__file__).parents[2]
EXPERIMENTS = choices("experiment")
Published = tuple[str, str, frozenset[tuple[str, str]], str]
"""Model, method, the options that decide it, task: by our names."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(name: str, *words: str) -> DictConfig:
    return compose("experiment", [f"name={name}", *words])


def all_cells(**words: str) -> list[tuple[str, Cell]]:
    options = [f"{key}={value}" for key, value in words.items()]
    return [(name, cell) for name in EXPERIMENTS for cell in cells_of(asked(name, *options))]


def published() -> list[tuple[Published, set[str]]]:
    """Every accuracy of the paper, and the experiments that its source names."""
    with (ROOT / "results" / "paper" / "accuracy.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["benchmark"] != "mean"]
    return [(_published(row), {f"table{n}" for n in re.findall(r"Table (\d)", row["source"])}) for row in rows]


def _published(row: dict[str, str]) -> Published:
    method, options = ours(row["method"])
    return MODELS[row["model"]], method, _decisive(options), row["benchmark"].removesuffix("_v6")


def _decisive(options: dict[str, str]) -> frozenset[tuple[str, str]]:
    """Options of an identity, those left as shipped filled in."""
    return frozenset((SHIPPED | {k: v for k, v in options.items() if k in SHIPPED}).items())


def _cell(cell: Cell) -> Published:
    method, *options = cell.method.split()
    return cell.model, method, _decisive(dict(option.split("=") for option in options)), cell.what


def test_every_published_accuracy_is_a_cell_of_a_table_that_holds_it() -> None:
    held: dict[str, set[Published]] = {}
    for name, cell in all_cells():
        held.setdefault(name, set()).add(_cell(cell))
    for cell, tables in published():
        assert any(cell in held[table] for table in tables), cell


def test_no_table_of_accuracies_holds_what_the_paper_does_not() -> None:
    known = {cell for cell, _ in published()}
    assert all(_cell(cell) in known for _, cell in all_cells() if cell.verb == "run")


def test_every_experiment_composes() -> None:
    """Each method with one model and task, each model with each task or load: one of a kind."""
    kinds: dict[Any, Cell] = {}
    for _, cell in all_cells():
        kinds.setdefault((cell.verb, cell.method), cell)
        kinds.setdefault((cell.verb, cell.model, cell.what), cell)
    for cell in {id(cell): cell for cell in kinds.values()}.values():
        config = compose(cell.verb, cell.words)
        assert config.results == "results"
        assert cell.verb == "kernels" or instantiate(config.method, "method").name == cell.method.split()[0]


def test_glm_is_asked_three_times_and_the_others_five() -> None:
    cells = cells_of(asked("table3"))
    repeats = {c.model: compose("run", c.words).protocol.repeats for c in (cells[0], cells[-1])}
    assert repeats == {"qwen3-8b": 5, "glm-4.7": 3}


def test_an_unknown_name_lists_the_legal_ones() -> None:
    with pytest.raises(UserError, match="name=fig2 is not one of: client_sweeps, fig4, "):
        cells_of(asked("fig2"))


@pytest.mark.parametrize("task", QUESTIONS)
def test_the_questions_of_a_smoke_run_are_of_the_benchmarks_shape(task: str) -> None:
    (cell,) = [c for c in cells_of(asked("table5", "smoke=true")) if c.what == task and c.method == "int4"]
    config = compose("run", cell.words)
    assert len(read_file(Path(config.task.data))) == 2
    assert len(list(instantiate(config.task, "task").definition(seed=0).test_docs())) == 2


def test_a_folder_of_data_serves_every_benchmark_or_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it's.here").mkdir()
    for task in QUESTIONS:
        (tmp_path / "it's.here" / f"{task}.csv").touch()
    (cell, *_) = cells_of(asked("table5", "data='it\\'s.here'"))
    assert compose("run", cell.words).task.data == "it's.here/gpqa_diamond.csv"
    with pytest.raises(UserError, match=r"holds no aime25\.jsonl"):
        data_file(tmp_path, "aime25")


def test_hours_are_those_of_every_answer_at_its_full_length() -> None:
    (cell, *_) = [c for c in cells_of(asked("table2")) if c.what == "aime25"]
    config, gpu = compose("run", cell.words), asked("table2").gpu
    load = answers(config, at_once=256)
    assert (load.requests, load.output_tokens) == (30 * 5, 32768)
    once = seconds("run", config, gpu)
    config.protocol.repeats = config.task.protocol.repeats = 10
    twice = seconds("run", config, gpu)
    assert once is not None
    assert twice is not None
    assert 1.5 * once < twice < 2.5 * once


def test_a_model_that_the_card_does_not_hold_costs_none() -> None:
    config = asked("table3")
    glm = [plan(cell, config) for cell in cells_of(config)[-1:]]
    assert glm[0].seconds is None
    assert not glm[0].missing
    assert "does not fit" in described(glm, config)


def of(monkeypatch: pytest.MonkeyPatch, *cells: dict[str, Any]) -> None:
    """An experiment called table1 that holds ``cells`` alone."""
    file = OmegaConf.create({"about": "Two cells", "cells": list(cells)})
    for module in ("experiment", "experiment_cells"):
        monkeypatch.setattr(f"sawbench.verbs.{module}.experiment", lambda name: file)


RUN = {"verb": "run", "models": ["qwen3-8b"], "methods": ["bdr order=64"], "tasks": ["aime25"], "protocol": "paper"}
LOAD = {"verb": "bench", "models": ["qwen3-8b"], "methods": ["int4"], "loads": ["d256_1024"]}


def test_dry_prints_cells_and_cost_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of(monkeypatch, RUN, LOAD)
    assert cli.main(["experiment", "name=table1", "dry=true"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"run +qwen3-8b +bdr order=64 +aime25 +0 of 1 +\d", out)
    assert re.search(r"bench +qwen3-8b +int4 +d256_1024 x 32,64,128,256 +0 of 1 +\d", out)
    assert re.search(r"2 of 2 cells to run on this card: \d\S* GPU hours\. Hours at the roofline of one h200", out)
    assert not list(Path().iterdir())


def test_smoke_runs_every_cell_after_the_cost_and_finds_them_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of(monkeypatch, {**RUN, "tasks": ["aime25", "humaneval"]}, LOAD)
    assert cli.main(["experiment", "name=table1", "smoke=true"]) == 0
    out = capsys.readouterr().out
    assert out.index("3 of 3 cells to run") < out.index("tiny, aime25") < out.index("output tok/s")
    with Path("results/smoke/metrics.csv").open() as stream:
        assert {row["task"] for row in csv.DictReader(stream)} == {"aime25", "humaneval"}
    assert [path.name for path in Path("results").iterdir()] == ["smoke"], "apart from every other result"
    monkeypatch.setattr(run, "sweep", None)
    monkeypatch.setattr(bench, "sweep", None)
    assert cli.main(["experiment", "name=table1", "smoke=true"]) == 0
    assert "0 of 3 cells to run" in capsys.readouterr().out


def test_a_cell_that_fails_is_a_row_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of(monkeypatch, {**RUN, "methods": ["bdr order=3", "int4"]}, {**LOAD, "methods": ["bdr order=3"]})
    assert cli.main(["experiment", "name=table1", "smoke=true"]) == 1
    out = capsys.readouterr().out
    assert "FAILED bdr order=3: method.options.order=3 does not rotate" in out
    assert "FAILED bench: method.options.order=3 does not rotate" in out
    with Path("results/smoke/metrics.csv").open() as stream:
        assert {row["method"] for row in csv.DictReader(stream)} == {"bf16", "int4"}


def test_what_the_card_does_not_hold_is_said_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of(monkeypatch, {**LOAD, "models": ["qwen3-32b"], "set": ["model.weights=random"]})
    assert cli.main(["experiment", "name=table1", "gpu=rtx-4090"]) == 1
    assert "FAILED qwen3-32b: 1 cells not run, one rtx-4090 does not hold" in capsys.readouterr().out


def test_the_users_options_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    of(monkeypatch, LOAD)
    (cell,) = cells_of(asked("table1", 'set=["engine.max_running=32","seed=3"]'))
    config = compose("bench", cell.words)
    assert (config.engine.max_running, config.seed) == (32, 3)


@pytest.mark.slow
def test_every_experiment_smokes() -> None:
    assert cli.main(["experiment", "-m", f"name={','.join(EXPERIMENTS)}", "smoke=true"]) == 0


def test_what_the_documentation_names_exists() -> None:
    text = (ROOT / "REPRODUCING.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert set(re.findall(r"`make (\w+)`", text)) == set(EXPERIMENTS)


def test_each_experiment_has_a_target_of_its_name() -> None:
    """The Makefile takes them from the folder: a new file is a new target."""
    assert "$(wildcard configs/experiment/*.yaml)" in (ROOT / "Makefile").read_text()
    assert experiment_cells.experiment("fig7").cells == experiment_cells.experiment("fig4").cells

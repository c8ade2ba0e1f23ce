"""The script of the committed grid: its commands are legal, and a budget is kept."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from sawbench.config import compose, expand
from sawbench.results.tidy import read_csv
from sawbench.verbs.bench import prepare
from sawbench.verbs.bench_engine import Bench

TINY = ["model=tiny", "device=cpu", "engine.page_size=16", "engine.kv_bytes=1e6", "load.concurrency=2",
        "load.requests=2", "load.output_tokens=4", "load.input_tokens=20"]  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "gpu_throughput.py"
    spec = importlib.util.spec_from_file_location("gpu_throughput", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_cell_comes_twice(script: ModuleType) -> None:
    names = [name for name, _ in script.study()]
    assert len(names) == len(set(names))
    commands = [tuple(sorted(words)) for _, words in script.study()]
    assert len(commands) == len(set(commands))


@pytest.mark.slow
def test_every_command_is_legal_on_the_model_it_names(script: ModuleType) -> None:
    for _, words in script.study():
        configs = [compose("bench", each) for each in expand("bench", [*script.MODEL, *words, "estimate=true"])]
        cells, refused = prepare(configs)
        assert cells
        assert not refused


def test_a_cell_starts_only_if_it_is_likely_to_end_in_time(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["method=int4", *TINY, f"results={tmp_path}"]
    assert script.attempt(words, Bench(), left=script.CONSTANT / 2) == 0
    assert "left out" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert script.attempt(words, Bench(), left=100) == 0
    (row,) = read_csv(tmp_path / "throughput" / "bench.csv")
    assert row["output_tokens_total"] == "8"
    assert row["command"].startswith("python -m sawbench bench method=int4 model=tiny")


def test_a_refused_command_does_not_end_the_study(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.attempt(["method=none", *TINY], Bench(), left=100) == 1
    assert "refused" in capsys.readouterr().out

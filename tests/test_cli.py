"""The command line from end to end, on a model of random weights: what it prints, leaves behind and exits with."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from sawbench import cli
from sawbench.config import config_dir
from sawbench.engine.hf import HFEngine
from sawbench.verbs import loading

SMALL = ("model=tiny", "task.prompts=3", "task.answer_tokens=6", "task.layer_prompts=1", "task.floor_prompts=1")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models whose weights were loaded."""
    seen: list[str] = []
    real = loading.load_model

    def spy(plan: Any, *args: Any) -> Any:
        seen.append(plan.name)
        return real(plan, *args)

    monkeypatch.setattr(loading, "load_model", spy)
    return seen


def metrics() -> list[dict[str, str]]:
    with Path("results/metrics.csv").open() as stream:
        return list(csv.DictReader(stream))


def samples() -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in Path("results/runs").glob("*/samples.jsonl")}


def test_run_measures_the_method_and_its_baseline(capsys: pytest.CaptureFixture[str], loads: list[str]) -> None:
    assert cli.main(["run", *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split() == ["bf16", "bdr"]
    assert "kl (nats)" in out
    assert "results/runs/" in out
    bits = {row["method"]: float(row["value"]) for row in metrics() if row["metric"] == "bits_per_value"}
    assert bits == {"bf16": 16.0, "bdr": 4 + 32 / 16}
    assert loads == ["tiny"]
    assert os.listdir() == ["results"], "nothing of Hydra's is left behind"


def test_the_record_states_what_was_really_done() -> None:
    cli.main(["run", *SMALL, "baseline=null"])
    (path,) = Path("results/runs").glob("*/environment.json")
    (attempt,) = json.loads(path.read_text())
    assert attempt["stored"] == {
        "key": ["NoOffset", "BlockHadamard order=16", "AffineInt bits=4 group=head storage=fp16"],
        "value": ["NoOffset", "Identity", "AffineInt bits=4 group=head storage=fp16"],
    }
    assert attempt["model_has_key_bias"]
    engine = attempt["engine"]
    assert (engine["engine"], engine["attention"], engine["prefill"]) == ("hf", "naive", "quantized")
    assert engine["compute_dtype"] == "float32"
    assert attempt["command"].startswith("python -m sawbench")


def test_a_second_identical_run_finds_the_first(capsys: pytest.CaptureFixture[str], loads: list[str]) -> None:
    cli.main(["run", *SMALL])
    first, kept = capsys.readouterr().out, samples()
    loads.clear()
    assert cli.main(["run", *SMALL, "engine=hf", "engine.batch_size=2"]) == 0
    assert capsys.readouterr().out == first
    assert samples() == kept
    assert loads == []


def test_a_sweep_loads_a_model_once_and_a_failed_cell_is_a_row(
    capsys: pytest.CaptureFixture[str], loads: list[str]
) -> None:
    arguments = ["run", "-m", *SMALL, "method=bdr,bdr_kv", "method.options.order=3,8", "seed=0,1"]
    assert cli.main(arguments) == 1
    out = capsys.readouterr().out
    rows = {line.split("  ")[0] for line in out.splitlines()}
    assert {"bf16", "bf16 seed=1", "bdr order=8", "bdr order=8 seed=1", "bdr_kv order=8"} <= rows
    failures = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert len(failures) == 4
    assert failures[0].startswith("FAILED bdr order=3: method.options.order=3 does not rotate tiny")
    assert loads == ["tiny"]


def test_what_fails_in_one_cell_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HFEngine.layer_errors

    def broken(self: HFEngine, items: Any) -> Any:
        if self.method.name == "int4":
            raise ArithmeticError("no such number")
        return real(self, items)

    monkeypatch.setattr(HFEngine, "layer_errors", broken)
    assert cli.main(["run", "-m", *SMALL, "method=int4,int8"]) == 1
    captured = capsys.readouterr()
    assert "FAILED int4: ArithmeticError: no such number" in captured.out
    assert {row["method"] for row in metrics()} == {"bf16", "int8"}


def test_out_of_memory_is_one_line_and_keeps_samples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: HFEngine, items: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(HFEngine, "layer_errors", full)
    assert cli.main(["run", *SMALL, "baseline=null"]) == 1
    captured = capsys.readouterr()
    assert "FAILED bdr: out of memory on cpu: try engine=hf engine.batch_size=4; the samples" in captured.out
    assert "Traceback" not in captured.out + captured.err
    (kept,) = samples().values()
    assert kept.count(b"\n") == 3


def test_an_interrupted_run_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: HFEngine, items: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HFEngine, "layer_errors", interrupted)
        assert cli.main(["run", *SMALL, "baseline=null"]) == 130
    kept = samples()
    assert cli.main(["run", *SMALL, "baseline=null"]) == 0
    assert samples() == kept
    bits = [row["value"] for row in metrics() if row["metric"] == "bits_per_value"]
    assert bits == ["6"], "measured though every sample was on disk"


@pytest.mark.parametrize(
    ("arguments", "named", "legal"),
    [
        (["rum"], "VERB=rum", "calibrate"),
        (["run", "--halp"], "switch=--halp", "--help"),
        (["run", "method=int5"], "method=int5", "int4"),
        (["run", "model=qwen9"], "model=qwen9", "qwen3-4b"),
        (["run", "methods=bdr"], "methods", "method"),
        (["run", "-m", "method=bdr,int5"], "method=int5", "bdr"),
        (["run", "method=int4,bdr"], "method", "-m"),
        (["run", *SMALL, "device=tpu"], "device=tpu", "cuda"),
        (["run", *SMALL, "engine=paged"], "engine=paged", "engine=hf"),
        (["run", *SMALL, "prefill=none"], "prefill=none", "quantized, exact"),
        (["run", *SMALL, "attention=flash"], "attention=flash", "naive"),
        (["run", *SMALL, "model.dtype=int8"], "model.dtype=int8", "bf16"),
        (["run", *SMALL, "method.options.order=3"], "method.options.order=3", "2, 4, 8, 16"),
        (["run", *SMALL, "method.options.bits=9"], "method.options.bits=9", "2, 3, 4"),
        (["run", *SMALL, "baseline=fp64"], "method=fp64", "bf16"),
        (["run", "model=tiny", "task.prompts=9999"], "task.prompts=9999", "between 1 and"),
        (["run", "model.path=nowhere.gguf"], "model.path=nowhere.gguf", ".gguf"),
        (["run", "model=qwen3-4b"], "Qwen/Qwen3-4B-Thinking-2507", "hf download"),
        (["run", "model=llama-4-scout", "model.weights=random"], "llama-4-scout", "full attention"),
        (["list", "what=words"], "what=words", "methods"),
    ],
)
def test_a_mistake_is_one_line_before_weights_load(
    arguments: list[str], named: str, legal: str, capsys: pytest.CaptureFixture[str], loads: list[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("sawbench: ")
    assert named in line
    assert legal in line
    assert captured.out == ""
    assert loads == []
    assert os.listdir() == []


def test_help_names_every_verb_and_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in cli.VERBS)
    for verb in cli.VERBS:
        assert cli.main([verb, "--help"]) == 0
        assert f"python -m sawbench {verb}" in capsys.readouterr().out
    cli.main(["run", "--help"])
    out = capsys.readouterr().out
    assert "method=bdr" in out
    assert "kbias_bdr" in out
    assert "seed=0" in out


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_its_file_and_its_configuration(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    alone = OmegaConf.load(config_dir() / f"{verb}.yaml")
    wanted = [f"{key}=given" for key in alone if OmegaConf.is_missing(alone, key)]
    assert cli.main([verb, "--cfg", *wanted]) == 0
    assert Path(cli.__file__).with_name("verbs").joinpath(f"{verb}.py").is_file()


def test_list_shows_the_bits_that_methods_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "what=methods"]) == 0
    bits = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()[3:] if line}
    assert bits["bf16"] == "16.00"
    assert bits["int4"] == bits["bdr"] == bits["kbias_bdr"] == "4.25"
    assert bits["int8"] == "8.25"
    assert bits["k8v4"] == "6.25"
    assert float(bits["kmeans"]) > 4.25, "the index is counted"


def test_doctor_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "model=tiny"]) == 0
    assert "`python -m sawbench run` works" in capsys.readouterr().out


def test_doctor_says_how_to_get_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "model=qwen3-4b"]) == 1
    assert "hf download Qwen/Qwen3-4B-Thinking-2507" in capsys.readouterr().out


def sawbench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program as a user starts it, in a process of its own."""
    command = [sys.executable, "-m", "sawbench", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_studys_own_command_with_the_hub_switched_off(tmp_path: Path) -> None:
    from models.hub_cache import write_hub_model

    write_hub_model(tmp_path / "hub", "Qwen/Qwen3-4B-Thinking-2507")
    done = sawbench("run", "method=bdr", "model=qwen3-4b", *SMALL[1:], HF_HUB_CACHE=str(tmp_path / "hub"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].split() == ["bf16", "bdr"]
    assert {row["model"] for row in metrics()} == {"qwen3-4b"}


def test_without_weights_the_program_says_so_in_one_line(tmp_path: Path) -> None:
    done = sawbench("run", "method=bdr", "model=qwen3-4b", HF_HUB_CACHE=str(tmp_path / "empty"))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert "hf download Qwen/Qwen3-4B-Thinking-2507" in line

"""What no page can hold is said where a user meets it: in the list, in the refusal, in the record and the tables."""

import json
from pathlib import Path

import pytest
import torch

from sawbench.cli import main
from sawbench.config import compose, instantiate
from sawbench.results.tidy import read_csv
from sawbench.verbs.job import with_engine

QUICK = ["model=tiny", "device=cpu", "task.prompts=1", "task.answer_tokens=4", "task.floor_prompts=1"]


def test_the_paged_engine_refuses_with_the_reason_before_weights_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "method=kitty", "engine=paged", "task=passkey", "model=tiny", f"results={tmp_path}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "engine=paged cannot serve method=kitty: tokens wait in a 16-bit window" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("method", "engine"), [("bdr", "paged"), ("kivi2", "hf"), ("mixed", "hf")])
def test_engine_auto_on_a_gpu_is_one_that_can(method: str, engine: str) -> None:
    config = compose("run", [f"method={method}", "task=passkey", "model=tiny"])
    task, bound = instantiate(config.task, "task"), instantiate(config.method, "method")
    assert with_engine(config, torch.device("cuda"), task, bound).engine.name == engine


def test_list_says_which_methods_are_servable_and_why_others_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "what=methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    column = lines[1].index("servable")
    said = {
        line.split()[0]: line[column : column + 3].strip() for line in lines[3:] if "not servable" not in line and line
    }
    assert {name for name, servable in said.items() if servable == "no"} == {"kivi2", "kivi4", "kitty", "mixed"}
    assert sum("is not servable (engine=hf runs it): " in line for line in lines) == 4


def test_the_record_and_the_table_carry_it(tmp_path: Path) -> None:
    """A method with windows runs end to end: no floor where a prompt in other chunks is another method."""
    words = ["method.options.group=4", "method.options.residual=8", f"results={tmp_path}", *QUICK]
    assert main(["run", "method=kivi2", *words]) == 0
    rows = {row["method"]: row for row in read_csv(tmp_path / "runs.csv")}
    assert (rows["bf16"]["servable"], rows["bf16"]["servable_reason"]) == ("True", "")
    assert rows["kivi2"]["servable"] == "False"
    assert "no uniform pages" in rows["kivi2"]["servable_reason"]
    samples = [
        json.loads(line)
        for file in tmp_path.glob("runs/*kivi2*/samples.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert samples
    metrics = {row["metric"]: row for row in read_csv(tmp_path / "metrics.csv") if row["method"] == "kivi2"}
    assert 3 < float(metrics["bits_per_value"]["value"]) < 16
    assert metrics.get("kl_floor", {"value": ""})["value"] == ""
    assert float(metrics["kl"]["value"]) > 0


def test_bits_of_a_window_depend_on_neither_batches_nor_kills(tmp_path: Path) -> None:
    """A row keeps its newest tokens in 16 bits: whom it shared a batch with, and until when, must not show."""
    words = ["run", "method=kivi2", "method.options.group=4", "method.options.residual=8", "baseline=null", *QUICK]
    words += ["task.prompts=3", "task.together=3"]

    def bits(*more: str) -> str:
        assert main([*words, *more]) == 0
        folder = next(Path(word.removeprefix("results=")) for word in more if word.startswith("results="))
        (row,) = [row for row in read_csv(folder / "metrics.csv") if row["metric"] == "bits_per_value"]
        return row["value"]

    together = bits(f"results={tmp_path / 'a'}")
    (finished,) = tmp_path.glob("a/runs/*/metrics.json")
    finished.unlink()
    assert bits(f"results={tmp_path / 'a'}") == together
    assert bits(f"results={tmp_path / 'b'}", "engine=hf", "engine.batch_size=1") == together
    assert 3 < float(together) < 16

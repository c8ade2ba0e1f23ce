"""The default model's real weights (`make model`): what the study says must already show on them."""

import csv
from pathlib import Path

import pytest

from sawbench import cli
from sawbench.config import group_config
from sawbench.models import has_weights, plan_model

MISSING = has_weights(plan_model(group_config("model", "smollm2-135m"), need_weights=False))


@pytest.mark.slow
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_four_bits_cost_more_than_rotated_ones_and_those_more_than_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("task.prompts=4", "task.answer_tokens=48", "task.layer_prompts=1", "task.floor_prompts=1")
    assert cli.main(["run", "-m", "method=int8,int4,bdr,kbias_bdr", *small]) == 0
    assert "smollm2-135m has no key bias" in caplog.text
    with Path("results/metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    kl = {row["method"]: float(row["value"]) for row in rows if row["metric"] == "kl"}
    bits = {row["method"]: float(row["value"]) for row in rows if row["metric"] == "bits_per_value"}
    assert kl["int4"] > kl["bdr"] > kl["int8"] > kl["bf16"] >= 0
    assert kl["kbias_bdr"] == kl["bdr"], "without a key bias the split is no split"
    assert bits == {"bf16": 16, "int8": 8.5, "int4": 4.5, "bdr": 4.5, "kbias_bdr": 4.5}

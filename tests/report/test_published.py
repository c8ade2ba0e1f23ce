"""Published beside measured: every cell of the paper, its inconsistencies, and a command that exists."""

import shlex
from pathlib import Path

import pytest

from sawbench.config import choices, compose
from sawbench.report import published
from sawbench.report.records import Number, Study

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study() -> Study:
    return Study.read(ROOT / "results")


@pytest.mark.parametrize(
    ("label", "method", "options"),
    [
        ("BF16 KV", "bf16", {}),
        ("INT4", "int4", {}),
        ("BDR-16 (K) [T8]", "bdr", {"order": "16"}),
        ("BDR-128 (K&V)", "bdr_kv", {"order": "128"}),
        ("KMeans C=256", "kmeans", {"centroids": "256"}),
        ("KMeans C=16 + BDR-64 (K)", "kmeans_bdr", {"centroids": "16", "order": "64"}),
        ("KMeans(2048)+BDR-128(K)", "kmeans_bdr", {"centroids": "2048", "order": "128"}),
        ("Hessian+BDR-128 (K) [T5]", "hessian_bdr", {}),
    ],
)
def test_labels_of_the_paper_name_our_methods(label: str, method: str, options: dict[str, str]) -> None:
    assert published.ours(label) == (method, options)
    assert method in choices("method")


def test_every_accuracy_of_the_paper_is_in_a_table(study: Study) -> None:
    tables = list(published.tables(study))
    assert sum(len(table.rows) for table in tables) == len(study.paper["accuracy"]) == 288


def test_the_paper_csv_files_name_their_source(study: Study) -> None:
    for frame in study.paper.values():
        assert "source" in frame or {"hardware", "scenario"} <= set(frame.columns)


def test_every_inconsistency_belongs_to_a_cell_of_the_paper(study: Study) -> None:
    notes = study.paper["inconsistencies"]
    accuracy = notes[notes["model"] != "throughput"].fillna("")
    cells = set(zip(*(study.paper["accuracy"][c] for c in ("model", "method")), strict=True))
    assert {(row.model, row.method) for row in accuracy.itertuples()} <= cells
    assert "2.11" in published.inconsistency(study, "Qwen3-8B", "INT4", "math500")


def test_commands_for_what_did_not_run_compose(study: Study) -> None:
    """Model and method exist and take the options; tasks are checked where their files are."""
    labels = study.paper["accuracy"][["model", "method"]].drop_duplicates().itertuples(index=False)
    different = {published.ours(label)[0]: (model, label) for model, label in labels}
    for model, label in different.values():
        words = shlex.split(published.command(model, label, "humaneval"))
        config = compose("run", words[4:])
        assert config.method.name == published.ours(label)[0]
        assert config.protocol.name == "paper"


KEYS = "model,method,options,task,engine,attention,prefill,dtypes,run"
PAPER = """model,method,benchmark,score,sd,source
Qwen3-8B,BDR-64 (K),humaneval,80.0,1.0,t
Qwen3-8B,INT4,humaneval,0,,t
"""


def one_run(root: Path, keys: str, protocol: str) -> Study:
    """Two cells of the paper and one measured one: pass@1 of 70 [64, 75]."""
    (root / "paper").mkdir()
    (root / "paper" / "accuracy.csv").write_text(PAPER)
    (root / "metrics.csv").write_text(f"{KEYS},metric,value,unit,low,high,n\n{keys},pass@1,70.0,%,64.0,75.0,820\n")
    (root / "humaneval_conditions.csv").write_text(f"{KEYS},protocol.name\n{keys},{protocol}\n")
    return Study.read(root)


def test_a_measured_cell_takes_its_place(tmp_path: Path) -> None:
    study = one_run(tmp_path, "qwen3-8b,bdr,order=64,humaneval,paged,triton,quantized,,r1", "paper")
    (table,) = published.tables(study)
    measured, missing = table.rows
    assert measured[4] == Number(70.0, 64.0, 75.0, "r1")
    assert measured[6:8] == ["lower than published", "r1"]
    assert missing[4] is None
    assert missing[6] == "not run here"


def test_a_run_under_another_protocol_is_not_set_beside_the_paper(tmp_path: Path) -> None:
    study = one_run(tmp_path, "qwen3-8b,bdr,order=64,humaneval,hf,naive,quantized,,r1", "greedy")
    (table,) = published.tables(study)
    assert [row[6] for row in table.rows] == ["not run here"] * 2


def test_another_block_order_is_another_cell(tmp_path: Path) -> None:
    study = one_run(tmp_path, "qwen3-8b,bdr,,humaneval,hf,naive,quantized,,r1", "paper")
    (table,) = published.tables(study)
    assert table.rows[0][6] == "not run here"


@pytest.mark.parametrize(
    ("score", "sd", "measured", "verdict"),
    [
        (70.0, 2.0, Number(69.0, 66.0, 72.0), "no difference seen"),
        (70.0, 0.5, Number(60.0, 55.0, 65.0), "lower than published"),
        (0.0, None, Number(5.0, 2.0, 9.0), "higher than published"),
        (70.0, 8.0, Number(76.0, 70.5, 80.0), "no difference seen"),
        (70.0, 1.0, Number(60.0), "cannot tell"),
    ],
)
def test_verdicts_weigh_the_noise_of_both_sides(score: float, sd: float | None, measured: Number, verdict: str) -> None:
    assert published.verdict(score, sd, 5, measured) == verdict

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
Qwen3-8B,BF16,gpqa_diamond,60.0,1.0,t
Qwen3-8B,KMeans C=16,humaneval,80.0,1.0,t
GLM-4.7-FP8,BF16,humaneval,90.0,1.0,t
"""
AS_PUBLISHED = {
    "protocol.name": "paper", "protocol.thinking": "True", "protocol.temperature": "0.6", "protocol.top_p": "0.95",
    "protocol.repeats": "5", "max_new_tokens": "32768",
}  # fmt: skip
BDR = "qwen3-8b,bdr,order=64,humaneval,paged,triton,quantized,,r1"
SCORE = "pass@1,70.0,%,64.0,75.0,820"


def study_of(root: Path, *runs: tuple[str, dict[str, str], int, int], metrics: tuple[str, ...] = (SCORE,)) -> Study:
    """Cells of the paper, and runs: key columns, conditions beside those of the paper, items, repeats."""
    (root / "paper").mkdir(parents=True)
    (root / "paper" / "accuracy.csv").write_text(PAPER)
    task = runs[0][0].split(",")[3]
    rows = [f"{keys},{metric}" for keys, *_ in runs for metric in metrics]
    (root / "metrics.csv").write_text("\n".join([f"{KEYS},metric,value,unit,low,high,n", *rows]) + "\n")
    conditions = [",".join([keys, *(AS_PUBLISHED | other).values()]) for keys, other, _, _ in runs]
    (root / f"{task}_conditions.csv").write_text("\n".join([f"{KEYS},{','.join(AS_PUBLISHED)}", *conditions]) + "\n")
    scores = [f"{keys},q{i},{r},1" for keys, _, items, repeats in runs for i in range(items) for r in range(repeats)]
    (root / f"{task}_scores.csv").write_text("\n".join([f"{KEYS},item,repeat,value", *scores]) + "\n")
    return Study.read(root)


def row_of(study: Study, model: str, label: str, benchmark: str = "humaneval") -> dict[str, object]:
    rows = [
        dict(zip(t.columns, row, strict=True)) for t in published.tables(study) if model in t.title for row in t.rows
    ]
    (row,) = [row for row in rows if (row["method"], row["benchmark"]) == (label, benchmark)]
    return row


def test_a_measured_cell_takes_its_place(tmp_path: Path) -> None:
    study = study_of(tmp_path, (BDR, {}, 164, 5))
    measured, missing = (row_of(study, "Qwen3-8B", label) for label in ("BDR-64 (K)", "INT4"))
    assert measured["measured (%)"] == Number(70.0, 64.0, 75.0, "r1")
    assert measured["difference (points)"] == Number(-10.0, run="r1")
    assert (measured["verdict"], measured["run, or the command"]) == ("lower than published", "r1")
    assert missing["measured (%)"] is None
    assert missing["verdict"] == "not run here"


def test_a_template_without_a_switch_for_thinking_is_as_published(tmp_path: Path) -> None:
    """The record says what the template was told: nothing, where a model thinks of itself."""
    row = row_of(study_of(tmp_path, (BDR, {"protocol.thinking": ""}, 164, 5)), "Qwen3-8B", "BDR-64 (K)")
    assert row["verdict"] == "lower than published"


@pytest.mark.parametrize(
    ("other", "items", "repeats", "options", "said"),
    [
        ({}, 2, 5, "order=64", "2 of 164 items scored"),
        ({}, 164, 4, "order=64", "656 of 820 answers scored"),
        ({"max_new_tokens": "8"}, 164, 5, "order=64", "max new tokens 8, not 32768"),
        ({"protocol.repeats": "1"}, 164, 5, "order=64", "repeats 1, not 5"),
        ({"protocol.temperature": "0"}, 164, 5, "order=64", "temperature 0, not 0.6"),
        ({"protocol.top_p": "1"}, 164, 5, "order=64", "top p 1, not 0.95"),
        ({"protocol.thinking": "False"}, 164, 5, "order=64", "thinking off"),
        ({"protocol.temperature": ""}, 164, 5, "order=64", "temperature not recorded"),
        ({}, 164, 5, "order=64 group=32", "group=32"),
        ({}, 164, 5, "bits=8 order=64", "bits=8"),
    ],
)
def test_a_run_that_is_not_as_published_says_how_and_gets_no_verdict(
    other: dict[str, str], items: int, repeats: int, options: str, said: str, tmp_path: Path
) -> None:
    row = row_of(
        study_of(tmp_path, (BDR.replace("order=64", options), other, items, repeats)), "Qwen3-8B", "BDR-64 (K)"
    )
    assert row["verdict"] == f"not this cell: {said}"
    assert row["measured (%)"] == Number(70.0, 64.0, 75.0, "r1")
    assert row["difference (points)"] is None


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    """Where another row has no value, a CSV file's integers come back as 32768.0."""
    greedy = ("qwen3-8b,int4,,humaneval,hf,naive,quantized,,r2", {"max_new_tokens": "", "protocol.name": "x"}, 1, 1)
    row = row_of(study_of(tmp_path, (BDR, {}, 164, 5), greedy), "Qwen3-8B", "BDR-64 (K)")
    assert row["verdict"] == "lower than published"


def test_of_several_runs_the_one_as_published_is_the_cell(tmp_path: Path) -> None:
    small = (BDR.replace("r1", "r0"), {}, 2, 5)
    row = row_of(study_of(tmp_path, small, (BDR, {}, 164, 5)), "Qwen3-8B", "BDR-64 (K)")
    assert (row["verdict"], row["run, or the command"]) == ("lower than published", "r1")


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ("centroids=16 heads_per_codebook=4 calibration_tokens=20000", "lower than published"),
        ("calibration_tokens=20000", "not this cell: heads_per_codebook=as shipped"),
    ],
)
def test_a_codebook_must_be_fitted_as_published(options: str, verdict: str, tmp_path: Path) -> None:
    keys = f"qwen3-8b,kmeans,{options},humaneval,paged,triton,quantized,,r1"
    assert row_of(study_of(tmp_path, (keys, {}, 164, 5)), "Qwen3-8B", "KMeans C=16")["verdict"] == verdict


def test_glm_was_published_with_three_runs(tmp_path: Path) -> None:
    keys = "glm-4.7,bf16,,humaneval,paged,triton,quantized,,r1"
    for repeats, verdict in (
        (3, "lower than published"),
        (5, "not this cell: 820 of 492 answers scored; repeats 5, not 3"),
    ):
        study = study_of(tmp_path / str(repeats), (keys, {"protocol.repeats": str(repeats)}, 164, repeats))
        assert row_of(study, "GLM", "BF16")["verdict"] == verdict
    assert "protocol.repeats=3" in published.command("GLM-4.7-FP8", "BF16", "humaneval")


def test_gpqa_is_compared_by_the_rule_of_the_papers_client(tmp_path: Path) -> None:
    keys = "qwen3-8b,bf16,,gpqa_diamond,paged,triton,quantized,,r1"
    both = ("accuracy,50.0,%,45.0,55.0,990", "accuracy_paper_rule,59.0,%,54.0,64.0,990")
    row = row_of(study_of(tmp_path, (keys, {}, 198, 5), metrics=both), "Qwen3-8B", "BF16", "gpqa_diamond")
    assert row["measured (%)"] == Number(59.0, 54.0, 64.0, "r1")
    assert row["verdict"] == "no difference seen"


def test_unscored_answers_are_no_score(tmp_path: Path) -> None:
    metrics = ("pass@1,,%,,,0", "no_answer,70.0,%,,,820")
    row = row_of(study_of(tmp_path, (BDR, {}, 164, 5), metrics=metrics), "Qwen3-8B", "BDR-64 (K)")
    assert row["verdict"] == "unscored"
    assert row["measured (%)"] is None
    assert row["difference (points)"] is None


def test_a_run_under_another_protocol_is_not_set_beside_the_paper(tmp_path: Path) -> None:
    study = study_of(tmp_path, (BDR, {"protocol.name": "greedy"}, 164, 5))
    assert {row[6] for table in published.tables(study) for row in table.rows} == {"not run here"}


def test_another_block_order_is_another_cell(tmp_path: Path) -> None:
    study = study_of(tmp_path, (BDR.replace("order=64", ""), {}, 164, 5))
    assert row_of(study, "Qwen3-8B", "BDR-64 (K)")["verdict"] == "not run here"


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

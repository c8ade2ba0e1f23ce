"""Published beside measured: every accuracy of the paper, what ran here, and the command for what did not."""

import re
from collections.abc import Iterator, Mapping
from math import sqrt

import pandas as pd

from sawbench.report.accuracy import headline
from sawbench.report.content import Table, Value, texts
from sawbench.report.records import Number, Run, Study

MODELS = {"Qwen3-4B-Thinking-2507": "qwen3-4b", "Qwen3-8B": "qwen3-8b", "GLM-4.7-FP8": "glm-4.7"}
SHIPPED = {"order": "128", "centroids": "16"}
"""What an option that a label does not name stands for at head_dim 128."""
FITTED = ("method.options.calibration_tokens=20000", "method.options.heads_per_codebook=4")
"""The published k-means: 20,000 tokens, and one codebook for the four heads of each of two GPUs."""
SOURCE = "Jia et al., SAW-INT4, arXiv 2604.19157; transcribed in results/paper/"


def tables(study: Study) -> Iterator[Table]:
    """One table a model: published, measured, difference, verdict, and the run or the command."""
    cells = study.paper.get("accuracy", pd.DataFrame(columns=["model"]))
    runs = [run for run in study.runs() if run.conditions.get("protocol.name") == "paper"]
    for model, rows in cells.groupby("model", sort=False):
        found = [_row(study, runs, {str(k): v for k, v in row.items()}) for row in rows.to_dict("records")]
        yield Table(
            f"published-{MODELS[str(model)]}",
            f"Published and measured: {model}",
            ["method", "benchmark", "published (%)", "s.d.", "measured (%)", "difference (points)", "verdict",
             "run, or the command", "inconsistency in the paper"],
            found,
            [f"Published: {SOURCE}.", "Means over the five benchmarks are the paper's; they are not run as such.",
             "A whole table, its cost first: `make table2` (table3, table5, table8, table9), see REPRODUCING.md."],
        )  # fmt: skip


def inconsistencies(study: Study) -> Iterator[Table]:
    """All that the paper leaves contradictory, in one table."""
    rows = study.paper.get("inconsistencies")
    if rows is not None:
        columns = ["model", "method", "benchmark", "note", "source"]
        yield Table("published-inconsistencies", "What the paper leaves inconsistent", columns, texts(rows, columns))


def ours(label: str) -> tuple[str, dict[str, str]]:
    """Our method and options for a label of the paper: ``KMeans C=16 + BDR-64 (K)`` is kmeans_bdr."""
    text = re.sub(r"\[T\d]|\s", "", label)
    centroids, order = re.search(r"KMeans(?:C=|\()(\d+)", text), re.search(r"BDR-(\d+)", text)
    options = {name: found[1] for name, found in (("centroids", centroids), ("order", order)) if found}
    if centroids:
        return ("kmeans_bdr" if order else "kmeans"), options
    if text.startswith("Hessian"):
        return "hessian_bdr", {}
    if order:
        return ("bdr_kv" if "K&V" in text else "bdr"), options
    return ("int4" if text.startswith("INT4") else "bf16"), {}


def command(model: str, label: str, benchmark: str) -> str:
    """What would measure a cell that is not here."""
    method, options = ours(label)
    words = [f"model={MODELS[model]}", f"method={method}", *(f"method.options.{k}={v}" for k, v in options.items())]
    code = ["task.allow_code_execution=true"] if benchmark in ("humaneval", "livecodebench_v6") else []
    fit = [*FITTED, "calibration=paper"] if "centroids" in options else []
    task = {"livecodebench_v6": "livecodebench"}.get(benchmark, benchmark)
    return " ".join(["python -m sawbench run", *words, *fit, f"task={task}", "protocol=paper", *code])


def matching(runs: list[Run], model: str, label: str, benchmark: str) -> Run | None:
    """The first run of the paper's protocol that is this cell."""
    method, wanted = ours(label)
    for run in runs:
        keys = run.keys
        options = SHIPPED | dict(pair.split("=", 1) for pair in keys["options"].split())
        names = (keys["model"], keys["method"], keys["task"].removesuffix("_v6"))
        if names == (MODELS[model], method, benchmark.removesuffix("_v6")) and options.items() >= wanted.items():
            return run
    return None


def verdict(published: float, sd: float | None, repeats: int, measured: Number) -> str:
    """Whether the 95 % interval of the difference, both sides' noise in it, excludes zero."""
    if measured.low is None or measured.high is None:
        return "cannot tell"
    theirs = 1.96 * (sd or 0.0) / sqrt(repeats)
    gap = measured.value - published
    noise = measured.value - measured.low if gap > 0 else measured.high - measured.value
    if abs(gap) <= sqrt(noise**2 + theirs**2):
        return "no difference seen"
    return "higher than published" if gap > 0 else "lower than published"


def _row(study: Study, runs: list[Run], cell: Mapping[str, object]) -> list[Value]:
    model, label, benchmark = str(cell["model"]), str(cell["method"]), str(cell["benchmark"])
    score, sd = float(str(cell["score"])), float(str(cell["sd"]))
    start: list[Value] = [label, benchmark, Number(score), None if sd != sd else Number(sd)]
    note = inconsistency(study, model, label, benchmark)
    if benchmark == "mean":
        return [*start, None, None, "", "", note]
    run = matching(runs, model, label, benchmark)
    if run is None:
        return [*start, None, None, "not run here", command(model, label, benchmark), note]
    measured = headline(run)[1]
    judged = verdict(score, None if sd != sd else sd, 3 if model.startswith("GLM") else 5, measured)
    return [*start, measured, Number(measured.value - score, run=run.id), judged, run.id, note]


def inconsistency(study: Study, model: str, label: str, benchmark: str) -> str:
    """What the paper says elsewhere about the same cell."""
    rows = study.paper.get("inconsistencies")
    if rows is None:
        return ""
    rows = rows.fillna("")
    here = (rows["model"] == model) & (rows["method"] == label) & rows["benchmark"].isin([benchmark, ""])
    return "; ".join(rows[here]["note"])

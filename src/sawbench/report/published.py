"""Published beside measured: every accuracy of the paper, what ran here, and the command for what did not."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

import pandas as pd

from sawbench.report.accuracy import SUFFIX, scores_of
from sawbench.report.content import Table, Value, texts
from sawbench.report.records import Number, Run, Study

MODELS = {"Qwen3-4B-Thinking-2507": "qwen3-4b", "Qwen3-8B": "qwen3-8b", "GLM-4.7-FP8": "glm-4.7"}
SHIPPED = {"order": "128", "centroids": "16"}
"""What an option that a label does not name stands for at head_dim 128."""
FITTED = {"calibration_tokens": "20000", "heads_per_codebook": "4"}
"""The published k-means: 20,000 tokens, and one codebook for the four heads of each of two GPUs."""
ITEMS = {"gpqa_diamond": 198, "humaneval": 164, "livecodebench_v6": 171, "aime25": 30, "math500": 500}
PROTOCOL = {
    "protocol.temperature": "0.6",
    "protocol.top_p": "0.95",
    "max_new_tokens": "32768",
}
THINKING = "protocol.thinking"
"""Blank where the template was told nothing, or has no switch: a model then thinks as it does of itself."""
CLIENTS = "accuracy_paper_rule"
"""GPQA's score by the rule of the paper's client: the published numbers are by that."""
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
            [f"Published: {SOURCE}. A run that is not as published says how, and gets no verdict; GPQA is compared by "
             "the rule of the paper's client.",
             "Means over the five benchmarks are the paper's; they are not run as such.",
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
    fit = [f"method.options.{k}={v}" for k, v in fitted(options).items()]
    calibration = ["calibration=paper"] if fit else []
    repeated = [f"protocol.repeats={n}"] if (n := repeats(model)) != 5 else []
    words += [*fit, *calibration, f"task={task_of(benchmark)}", "protocol=paper", *repeated]
    return " ".join(["python -m sawbench run", *words, *code])


def task_of(benchmark: str) -> str:
    return benchmark.removesuffix("_v6")


def repeats(model: str) -> int:
    return 3 if model.startswith("GLM") else 5


def fitted(options: Mapping[str, str]) -> dict[str, str]:
    """The options beside those of its label under which a method was published."""
    return FITTED if "centroids" in options else {}


def matching(study: Study, runs: Sequence[Run], model: str, label: str, benchmark: str) -> tuple[Run, list[str]] | None:
    """Of the runs that bear the names of this cell the one that is most like it, and how it differs from it."""
    method, wanted = ours(label)
    names = (MODELS[model], method, task_of(benchmark))
    alike = [
        (run, differences(study, run, model, wanted, benchmark))
        for run in runs
        if (run.keys["model"], run.keys["method"], run.keys["task"]) == names
        and all((SHIPPED | options_of(run)).get(name) == value for name, value in (SHIPPED | wanted).items())
    ]
    return min(alike, key=lambda found: len(found[1]), default=None)


def options_of(run: Run) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in run.keys["options"].split())


def differences(study: Study, run: Run, model: str, wanted: dict[str, str], benchmark: str) -> list[str]:
    """What must be as published and is not: how many items and answers, how they were sampled, options."""
    scores = scores_of(study.table(f"{run.keys['task']}{SUFFIX}"), run.id)
    items, answers = ITEMS[benchmark], ITEMS[benchmark] * repeats(model)
    asked = scores.index.get_level_values("item").nunique()
    counts = [f"{asked} of {items} items scored"] if asked != items else []
    if not counts and len(scores) != answers:
        counts = [f"{len(scores)} of {answers} answers scored"]
    protocol = PROTOCOL | {"protocol.repeats": str(repeats(model))}
    there, here = SHIPPED | wanted | fitted(wanted), SHIPPED | options_of(run)
    return [
        *counts,
        *(phrase for key, value in protocol.items() if (phrase := _other(key, run.conditions.get(key), value))),
        *(["thinking off"] if run.conditions.get(THINKING) == "False" else []),
        *(f"{k}={here.get(k, 'as shipped')}" for k in there | here if here.get(k) != there.get(k)),
    ]


def _other(key: str, said: str | None, wanted: str) -> str:
    """How a condition differs from the paper's."""
    name = key.removeprefix("protocol.").replace("_", " ")
    if said is None:
        return f"{name} not recorded"
    return "" if _plain(said) == _plain(wanted) else f"{name} {_plain(said)}, not {wanted}"


def _plain(text: str) -> str:
    """Numbers in one spelling: a CSV file may hold 32768.0."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


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
    found = matching(study, runs, model, label, benchmark)
    if found is None:
        return [*start, None, None, "not run here", command(model, label, benchmark), note]
    run, differing = found
    measured = run.metrics.get(CLIENTS, run.score)
    if measured is None:
        return [*start, None, None, "unscored", run.id, note]
    if differing:
        return [*start, measured, None, f"not this cell: {'; '.join(differing)}", run.id, note]
    judged = verdict(score, None if sd != sd else sd, repeats(model), measured)
    return [*start, measured, Number(measured.value - score, run=run.id), judged, run.id, note]


def inconsistency(study: Study, model: str, label: str, benchmark: str) -> str:
    """What the paper says elsewhere about the same cell."""
    rows = study.paper.get("inconsistencies")
    if rows is None:
        return ""
    rows = rows.fillna("")
    here = (rows["model"] == model) & (rows["method"] == label) & rows["benchmark"].isin([benchmark, ""])
    return "; ".join(rows[here]["note"])

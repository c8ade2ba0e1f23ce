"""Fidelity: which runs may be compared, the table of each such group, and its figures."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from sawbench.report.content import Drawing, Table
from sawbench.report.layers import by_layer
from sawbench.report.pareto import pareto
from sawbench.report.records import Run, Study, servable

TASK = "fidelity"
COLUMNS = {
    "bits_per_value": "stored bits per value",
    "kl": "KL to the reference (nats)",
    "kl_p99": "KL p99 (nats)",
    "kl_floor": "rounding floor of KL (nats)",
    "top1": "top-1 agreement (share)",
    "perplexity": "perplexity",
    "perplexity_reference": "reference perplexity",
    "first_divergence": "first divergence (median, tokens)",
    "key_error": "relative error of K",
    "value_error": "relative error of V",
    "output_error": "relative error of attention output",
}


def groups(study: Study) -> dict[tuple[str, str], list[Run]]:
    """Runs that may be compared: those of one model in one setting, by (model, setting)."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in study.runs(TASK):
        found.setdefault((run.keys["model"], run.setting), []).append(run)
    return found


def slug(*parts: str) -> str:
    """A file name's stem."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-")


def names(keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A stem for each (model, setting): the model alone where it has one setting, else with what tells its own from
    the others."""
    found: dict[tuple[str, str], str] = {}
    for model in dict.fromkeys(model for model, _ in keys):
        settings = [setting for name, setting in keys if name == model]
        for setting, words in zip(settings, telling(settings), strict=True):
            found[model, setting] = slug(model, *words)
    return {key: found[key] for key in keys}


def telling(settings: Sequence[str]) -> list[tuple[str, ...]]:
    """Of each setting the first few phrases that no other has all of; nothing of a setting that is alone."""
    chosen: list[tuple[str, ...]] = [()] * len(settings)
    for column in zip_longest(*(setting.split(", ") for setting in settings), fillvalue=""):
        longer = [(*words, phrase) for words, phrase in zip(chosen, column, strict=True)]
        if len(set(longer)) > len(set(chosen)):
            chosen = longer
    return chosen


def contents(study: Study) -> Iterator[Drawing | Table]:
    """For each model and setting the Pareto picture, the table, and the heat map by layer."""
    found = groups(study)
    layers = study.table("fidelity_layers")
    for key, stem in names(list(found)).items():
        runs = found[key]
        plotted = [run for run in runs if {"kl", "bits_per_value"} <= run.metrics.keys()]
        if len(plotted) > 1:
            yield pareto(f"pareto-{stem}", key, plotted)
        yield table(f"fidelity-{stem}", key, runs)
        rows = layers[layers["run"].isin([run.id for run in runs])]
        if rows["run"].nunique() > 1:
            yield by_layer(f"layers-{stem}", key, rows)


def table(name: str, key: tuple[str, str], runs: Sequence[Run]) -> Table:
    """Methods by falling KL."""
    ordered = sorted(runs, key=lambda run: -_value(run, "kl"))
    present = [metric for metric in COLUMNS if any(metric in run.metrics for run in runs)]
    head, served, reasons = servable(ordered)
    return Table(
        name,
        f"Fidelity of {key[0]}",
        ["method", *(COLUMNS[metric] for metric in present), *head, "run"],
        [[run.label, *(run.metrics.get(metric) for metric in present), *served[run.id], run.id] for run in ordered],
        [f"Setting: {key[1]}.", "Brackets: 95 % bootstrap interval over prompts.", *reasons],
    )


def _value(run: Run, metric: str) -> float:
    return run.metrics[metric].value if metric in run.metrics else float("inf")

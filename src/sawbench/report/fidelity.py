"""Fidelity: the table of each group of runs that may be compared, and its figures."""

from collections.abc import Iterator, Sequence

from sawbench.report.content import Drawing, Table
from sawbench.report.layers import by_layer
from sawbench.report.naming import names
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


def contents(study: Study) -> Iterator[Drawing | Table]:
    """For each model and setting the Pareto picture, the table, and the heat map by layer."""
    found = study.groups(TASK)
    layers = study.table("fidelity_layers")
    for key, stem in names(list(found)).items():
        runs = found[key]
        plotted = [run for run in runs if {"kl", "bits_per_value"} <= run.metrics.keys()]
        if len(plotted) > 1:
            yield pareto(f"pareto-{stem}", key, plotted)
        yield table(f"fidelity-{stem}", key, runs)
        labels = {run.id: run.label for run in runs}
        rows = layers[layers["run"].isin([*labels])]
        if rows["run"].nunique() > 1:
            yield by_layer(f"layers-{stem}", key, rows.assign(label=rows["run"].map(labels)))


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

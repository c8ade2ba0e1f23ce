"""``plan``: what every method's cache costs on a card, and what it gains, before anything is bought or downloaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from sawbench.config import choices, group_config, instantiate
from sawbench.core.errors import UserError, illegal
from sawbench.core.files import write_atomic
from sawbench.methods.method import KVMethod
from sawbench.models.architecture import make_config
from sawbench.report.style import colour, headline, label_points, look, save
from sawbench.results.tidy import to_csv
from sawbench.throughput.loads import number
from sawbench.throughput.plan import Card, Plan
from sawbench.throughput.roofline import Rates
from sawbench.verbs.table import table

GB, TIB = 1e9, 2**40
LEFT_OUT = ("reference",)
"""Keeps what the model computes in: no cache that anybody stores."""
DRAWN = ("bf16", "int8", "k8v4", "int4", "bdr", "kbias_bdr", "kmeans")


def main(config: DictConfig) -> int:
    """Raises UserError for numbers that are none, and unknown methods."""
    plan = plan_of(config)
    costs, refused = plan.costs(methods(config.methods))
    sizes = plan.methods(costs, refused)
    gains = list(plan.gains(costs, list(config.concurrency)))
    print(described(plan, sizes, config.gpu.source))
    if any(row["admitted"] for row in gains):
        print(f"\ngain over bf16 by concurrency, prompts included (bound)\n{gain_table(gains, 'gain')}")
        print(f"\nthe same of decoding alone\n{gain_table(gains, 'decode_gain')}")
    folder = Path(config.results) / "plan"
    stem = folder / f"{plan.model}-{plan.card.name}x{plan.card.count}-{plan.context}"
    write_atomic(Path(f"{stem}-methods.csv"), to_csv(sizes))
    write_atomic(Path(f"{stem}-gains.csv"), to_csv(gains))
    written = save(drawing(plan, sizes, gains), stem)
    print(f"\nwritten: {stem}-methods.csv, {stem}-gains.csv, {', '.join(path.name for path in written)}")
    return 0


def plan_of(config: DictConfig) -> Plan:
    gpu = config.gpu
    share = float(gpu.share)
    if not 0 < share <= 1 or int(gpu.count) < 1:
        raise UserError(f"gpu.share={gpu.share} is a share up to 1, and gpu.count={gpu.count} a number of cards")
    rates = Rates(number(gpu.read, "gpu.read"), number(gpu.matmul, "gpu.matmul"))
    card = Card(gpu.name, number(gpu.memory, "gpu.memory"), rates, share, int(gpu.count))
    if not config.model.config:
        raise UserError(f"model={config.model.name} ships no configuration: plan needs model.config")
    fields: Any = OmegaConf.to_container(config.model.config, resolve=True)
    lengths = number(config.context, "context"), number(config.output, "output")
    return Plan(config.model.name, make_config(fields), card, *lengths)


def methods(wanted: Any) -> dict[str, KVMethod]:
    """By name, as configs/method ships them; ``all`` or a list."""
    known = sorted((name for name in choices("method") if name not in LEFT_OUT), key=lambda name: name != "bf16")
    names = known if wanted == "all" else [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise illegal("methods", name, ["all", *known])
    return {name: instantiate(group_config("method", name), f"method={name}") for name in names}


def described(plan: Plan, sizes: Sequence[Mapping[str, Any]], source: str) -> str:
    """The table of sizes, under what they are sizes of."""
    counted = [row for row in sizes if "token_bytes" in row]
    chunked = any(row["own_bytes"] < row["request_bytes"] for row in counted)
    head = [
        "method",
        "bits/value",
        "bytes/token",
        "request, all layers full",
        *["with its own layers"] * chunked,
        "fit",
        "note",
    ]
    lines = [
        [row["method"], f"{row['bits']:.2f}", f"{row['token_bytes']:,.0f}", size(row["request_bytes"]),
         *[size(row["own_bytes"])] * chunked, str(row["fit"]), row["note"]]
        for row in counted
    ]  # fmt: skip
    weights = counted[0]["weight_bytes"] if counted else 0
    card = f"{plan.card.count} x {plan.card.name}" if plan.card.count > 1 else plan.card.name
    title = (
        f"{plan.model}: {plan.context:,} tokens in, {plan.output:,} out, on {card} ({source})\n"
        f"weights {weights / GB:.1f} GB in BF16; KV pool {plan.card.pool(weights) / GB:.1f} GB "
        f"({plan.card.share:.0%} of the memory less the weights)\n"
    )
    refused = [f"{row['method']}: {row['note']}" for row in sizes if "token_bytes" not in row]
    return "\n".join([title, table(head, lines), *refused])


def size(count: float) -> str:
    return f"{count / TIB:.2f} TiB" if count >= TIB / 10 else f"{count / GB:.3f} GB"


def gain_table(gains: Sequence[Mapping[str, Any]], column: str) -> str:
    """Methods by concurrency: a gain, and BF16's own tokens/s of the job."""
    levels = list(dict.fromkeys(row["concurrency"] for row in gains))
    cells = {(row["method"], row["concurrency"]): row for row in gains}
    names = list(dict.fromkeys(row["method"] for row in gains))
    lines = [[name, *(_gain(cells[name, level], column) for level in levels)] for name in names]
    return table(["method", *map(str, levels)], lines)


def _gain(row: Mapping[str, Any], column: str) -> str:
    if row["method"] == "bf16" and column == "gain" and row["output_tps"] is not None:
        return f"{row['output_tps']:.3g} tok/s"
    return "-" if row[column] is None else f"{row[column]:.2f}"


def drawing(plan: Plan, sizes: Sequence[Mapping[str, Any]], gains: Sequence[Mapping[str, Any]]) -> Figure:
    """Bytes of a request by method, and tokens/s by concurrency."""
    with look():
        figure = Figure(figsize=(10.5, 4.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        _bytes(left, [row for row in sizes if "token_bytes" in row])
        drawn = _curves(right, gains)
        headline(figure, f"{plan.model}, {plan.context:,} tokens a request, {plan.card.count} x {plan.card.name}")
        label_points(right, drawn)
    return figure


def _bytes(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: -row["own_bytes"])
    names = [row["method"] for row in rows]
    bars = axes.barh(names, [row["own_bytes"] / GB for row in rows], color=[colour(name) for name in names])
    axes.bar_label(bars, [f" {row['fit']} fit" for row in rows], fontsize=7.5)
    axes.set(title="KV cache of one request, and how many fit", xlabel="GB")
    axes.margins(x=0.12)
    axes.invert_yaxis()


def _curves(axes: Axes, gains: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, str, str]]:
    ends: list[tuple[float, float, str, str]] = []
    for name in DRAWN:
        points = [(r["concurrency"], r["output_tps"]) for r in gains if r["method"] == name and r["output_tps"]]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, color=colour(name), linewidth=1.3)
            ends.append((float(points[-1][0]), float(points[-1][1]), name, colour(name)))
    axes.set(
        title="Bound by the roofline",
        xlabel="concurrency (log)",
        ylabel="output tokens/s",
        xscale="log",
        ylim=(0, None),
    )
    axes.margins(x=0.25)
    return ends

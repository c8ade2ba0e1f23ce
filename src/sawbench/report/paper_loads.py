"""The paper's throughput as ratios to its own BF16, cell by cell, and the command for those that did not run here."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pandas as pd

from sawbench.report.content import Table, Value
from sawbench.report.published import SHIPPED, ours
from sawbench.report.records import Number, Study

UNFUSED = "fused=False"
"""Rotations in launches of their own, as a row of results/throughput says it."""
MODELS = {"4B": "qwen3-4b", "8B": "qwen3-8b", "32B": "qwen3-32b", "GLM": "glm-4.7"}
Key = tuple[str, str, str, int]
"""Model, row label, load, concurrency: as a row of results/throughput names itself."""


@dataclass(frozen=True)
class PaperCell:
    """``requests`` is how many the authors' client sent; None where the paper does not say."""

    key: Key
    ratio: float
    requests: int | None
    hardware: str

    @property
    def command(self) -> str:
        model, label, load, concurrency = self.key
        method, *options = label.split()
        words = [f"method={method}", *map(_word, options), f"load={load}"]
        counts = [f"load.concurrency={concurrency}", f"load.requests={self.requests or 'null'}"]
        return " ".join(["python -m sawbench bench", f"model={model}", "model.weights=random", *words, *counts])


def _word(option: str) -> str:
    """An option of a label as it is typed."""
    return "engine.fused=false" if option == UNFUSED else f"method.options.{option}"


def cells(study: Study) -> dict[Key, PaperCell]:
    """The client's sweeps of Qwen3-8B, then what only Table 1 has, then what only Figures 4 and 7 have."""
    found: dict[Key, PaperCell] = {}
    for cell in [*_sweeps(study), *_table1(study), *_figures(study)]:
        found.setdefault(cell.key, cell)
    return found


def not_run(study: Study, measured: Collection[Key]) -> Table | None:
    """The paper's cells that have no measurement here."""
    rows: list[list[Value]] = [
        [*cell.key[:3], Number(cell.key[3]), Number(cell.ratio), cell.hardware, "not run here", cell.command]
        for key, cell in cells(study).items()
        if key not in measured
    ]
    columns = [
        "model",
        "method",
        "load",
        "concurrency",
        "paper's ratio to BF16",
        "paper's hardware",
        "measured",
        "command",
    ]
    return Table("throughput-not-run", "The paper's loads that did not run here", columns, rows) if rows else None


def label_of(paper: str) -> str:
    """Our row label for the paper's name of a method: options that differ from the method's file, as typed."""
    if "unfused" in paper:
        return f"bdr {UNFUSED}"
    method, options = ours("BDR-128 (K)" if "BDR" in paper and "Hessian" not in paper else paper)
    changed = (f"{name}={value}" for name, value in options.items() if SHIPPED.get(name) != value)
    return " ".join([method, *changed])


def _sweeps(study: Study) -> Iterator[PaperCell]:
    for name in ("throughput_h100_tp1", "throughput_h100_tp2"):
        for row in study.paper.get(name, pd.DataFrame()).to_dict("records"):
            load = re.sub(r"D\((\d+),(\d+)\)", r"d\1_\2", str(row["scenario"]))
            key = (str(row["model"]).lower(), label_of(str(row["kv_config"])), load, int(row["concurrency"]))
            ratio, requests = float(row["output_tps_speedup_vs_bf16"]), int(row["total_requests"])
            yield PaperCell(key, ratio, requests, str(row["hardware"]))


def _table1(study: Study) -> Iterator[PaperCell]:
    """Ratios of output tokens/s per GPU."""
    table = study.paper.get("throughput_table1", pd.DataFrame(columns=["model"]))
    for model, rows in table.groupby("model", sort=False):
        base = float(rows[rows["method"] == "BF16"]["output_tps_per_gpu"].iloc[0])
        for row in rows.to_dict("records"):
            load = f"d{row['input_tokens']}_{row['output_tokens']}"
            key = (str(model).lower(), label_of(str(row["method"])), load, int(row["concurrency"]))
            yield PaperCell(key, float(row["output_tps_per_gpu"]) / base, None, str(row["hardware"]))


def _figures(study: Study) -> Iterator[PaperCell]:
    """Ratios of output tokens/s per GPU; of several builds of the fused kernel the one that is named first."""
    names = ["model_gpus", "method", "batch_size", "output_tps_per_gpu"]
    table = study.paper.get("throughput_8k1k", pd.DataFrame(columns=names))
    base = table[table["method"] == "BF16"].set_index(["model_gpus", "batch_size"])["output_tps_per_gpu"]
    for row in table.to_dict("records"):
        model, gpus = str(row["model_gpus"]).rstrip(")").split(" (")
        load, batch = f"d{row['input_tokens']}_{row['output_tokens']}", int(row["batch_size"])
        ratio = float(row["output_tps_per_gpu"]) / float(base[row["model_gpus"], row["batch_size"]])
        yield PaperCell((MODELS[model], label_of(str(row["method"])), load, batch), ratio, None, f"{gpus} GPUs")

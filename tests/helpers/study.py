"""A made-up results folder, written through the store as a run would: shapes like real ones, numbers that are not."""

from pathlib import Path

import numpy as np

from sawbench.core.records import Metric, TaskResult
from sawbench.results import RunStore, write_tidy

BITS = {
    "bf16": 16.0, "int8": 8.25, "int4": 4.25, "bdr": 4.25, "bdr_kv": 4.25, "kbias": 4.25, "kbias_bdr": 4.25,
    "kmeans": 4.26, "hessian_bdr": 4.25, "centre_bdr": 4.25, "k8v4": 6.25,
}  # fmt: skip
KL = {
    "bf16": 2e-5, "int8": 4e-4, "int4": 0.15, "bdr": 0.06, "bdr_kv": 0.055, "kbias": 0.14, "kbias_bdr": 0.061,
    "kmeans": 0.09, "hessian_bdr": 0.052, "centre_bdr": 0.045, "k8v4": 0.02,
}  # fmt: skip


def add_run(store: RunStore, model: str, method: str, kl: float, bits: float, layers: int = 6) -> str:
    """A finished fidelity cell."""
    identity = {"model": {"name": model}, "method": {"name": method}, "task": {"name": "fidelity"}, "seed": 0}
    cell = store.cell(identity)
    assert cell.claim()
    said = {"engine": "hf", "attention": "naive", "prefill": "quantized", "compute_dtype": "float32"}
    cell.environment({"command": f"python -m sawbench run method={method}", "date": "2026-01-02", "engine": said})
    metrics = (
        Metric("kl", kl, "nats", kl * 0.8, kl * 1.3, 1000),
        Metric("kl_floor", kl / 9, "nats", n=200),
        Metric("top1", 1 - kl, "share", 1 - 1.2 * kl, 1 - 0.9 * kl, 1000),
        Metric("perplexity", 3 + kl, "perplexity"),
        Metric("bits_per_value", bits, "bits"),
    )
    rows = [
        {"layer": layer, "head": head, "key": kl * (1 + layer), "value": kl, "output": kl / (1 + layer)}
        for layer in range(layers)
        for head in range(2)
    ]
    condition = {"reference_dtype": "float32", "compute_dtype": "float32", "prefill": "quantized", "prompts": 16}
    cell.finish(TaskResult(metrics, {"layers": rows, "conditions": [condition]}))
    cell.release()
    return cell.run


def key_profile(model: str = "toy", channels: int = 64) -> str:
    """key_profile.csv of a model with one outlier channel a head, spread out by rotation."""
    rng = np.random.default_rng(0)
    lines = ["model,layer,head,channel,stage,absmax,rms"]
    for layer in range(4):
        for head in range(2):
            base = rng.uniform(1, 3, channels)
            base[7 + head] = 30.0 * (layer + 1)
            flat = np.full(channels, float(np.sqrt((base**2).mean()))) * rng.uniform(0.8, 1.3, channels)
            for stage, values in (("before", base), ("after", flat)):
                lines += [f"{model},{layer},{head},{c},{stage},{v:.4g},{v / 2:.4g}" for c, v in enumerate(values)]
    return "\n".join(lines) + "\n"


def made_up(root: Path) -> Path:
    """A results folder with two models and a key profile; its CSV files."""
    store = RunStore(root)
    for method, bits in BITS.items():
        add_run(store, "toy-135m", method, KL[method], bits)
    for method in ("bf16", "int4", "bdr", "kbias_bdr"):
        add_run(store, "toy-1.5b", method, KL[method] * (16 if method in ("int4", "bdr") else 0.3), BITS[method])
    write_tidy(store)
    (root / "key_profile.csv").write_text(key_profile())
    return root

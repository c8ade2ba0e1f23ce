"""The committed throughput grid on one GPU: every cell is a ``sawbench bench`` command.

    python scripts/gpu_throughput.py --budget 480 --results results

One process, so that weights are made and kernels compiled once. A cell starts only if twice its bound still fits the
budget; each row is on disk as soon as it is measured, and the same command later goes on with what is missing.
``--cells`` takes patterns of the names that ``--list`` prints; what follows ``--`` goes to every command
(``-- model=tiny device=cpu``).
"""

import argparse
import logging
import time
from collections.abc import Iterator
from fnmatch import fnmatch

from sawbench.config import compose, expand
from sawbench.core.errors import UserError
from sawbench.verbs.bench import prepare, sweep
from sawbench.verbs.bench_engine import Bench

MODEL = ["model=qwen3-8b", "model.weights=random", "engine.kv_bytes=58.9e9"]
"""58.9e9 bytes: the pool of an 80 GB card at 88 % less the weights."""
BIASED = ["model.name=qwen2-8b-shape", "model.config.model_type=qwen2"]
"""The same shape with biases in its key projection, which Qwen3 lacks: what the key-bias split is for."""
KBIAS = "kbias_bdr_8"
"""The cheapest split: of the eight rotary pairs with the largest bias in each head."""
MAIN = ("bf16", "int4", "bdr")
OTHERS = (
    "bdr engine.fused=false",
    "int8",
    "bdr_kv",
    "k8v4",
    "hessian",
    "kmeans",
    "kmeans method.options.centroids=256",
)
GRID = (
    ("d16384_1024", 32),
    ("d16384_1024", 8, 16),
    ("d256_1024", 128),
    ("d16384_1024", 64),
    ("d256_1024", 256),
    ("d256_1024", 32),
)
"""Load, concurrency and, where they are more, requests. Every method runs at the first."""
CONSTANT = 15.0
"""Seconds that a cell may take beside its load: an engine's graphs, warm-up."""


def cell(method: str, load: str, concurrency: int, requests: int | None = None) -> tuple[str, list[str]]:
    """A load at one concurrency; ``method`` may be followed by options."""
    name = f"{method.replace(' ', '+')}/{load}/x{concurrency}"
    sizes = [f"load={load}", f"load.concurrency={concurrency}", f"load.requests={requests or concurrency}"]
    return name, [f"method={method.split()[0]}", *method.split()[1:], *sizes]


def steps(measure: str, methods: str, batch: int, context: int) -> tuple[str, list[str]]:
    """A measurement of decode steps."""
    sizes = [f"load.concurrency={batch}", f"load.requests={batch}", f"load.input_tokens={context}"]
    return f"{measure}/{methods}/{batch}x{context}", [f"measure={measure}", f"method={methods}", *sizes]


def biased(name: str, overrides: list[str]) -> tuple[str, list[str]]:
    """The same on the shape with a key bias."""
    return f"{name}/biased", [*overrides, *BIASED]


def peer() -> Iterator[tuple[str, list[str]]]:
    """transformers' generate_batch and ours, on answers of 256 tokens: at 1,024 the former takes minutes."""
    name, overrides = cell("bf16", "d256_1024", 128)
    short = [*overrides, "load.name=d256_256", "load.output_tokens=256"]
    yield f"peer/{name}", ["measure=peer", *short]
    yield f"peer/ours/{name}", short


def study() -> Iterator[tuple[str, list[str]]]:
    """(name, overrides of ``sawbench bench``), the most important first; cells of one method, side by side, share an
    engine."""
    yield from peer()
    for method in (*MAIN, *OTHERS):
        yield cell(method, *GRID[0])
    yield steps("step", "bf16,int4,bdr", 1, 2048)
    yield steps("overhead", "int4,bdr", 32, 8192)
    yield steps("split", "bf16,int4,bdr", 32, 16384)
    name, overrides = steps("split", "bdr", 32, 16384)
    yield f"{name}/unfused", [*overrides, "engine.fused=false"]
    for method in MAIN:
        for sizes in GRID[1:]:
            yield cell(method, *sizes)
    yield biased(*steps("overhead", f"int4,{KBIAS}", 32, 8192))
    yield biased(*cell("kbias_bdr", *GRID[0]))
    for sizes in GRID:
        yield biased(*cell(KBIAS, *sizes))
    for method in ("bf16", "int4"):
        name, overrides = cell(method, "d16384_1024", 64)
        yield f"{name}/own-pool", [*overrides, "engine.kv_bytes=null", "engine.gpu_memory=0.88"]
    for sizes in GRID:
        yield biased(*cell("bf16", *sizes))


def main() -> int:
    options = arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("sawbench").setLevel(logging.INFO)
    chosen = [(name, words) for name, words in study() if any(fnmatch(name, cells) for cells in options.cells)]
    if options.list:
        print("\n".join(f"{name}\n    python -m sawbench bench {' '.join(MODEL + words)}" for name, words in chosen))
        return 0
    start, bench, failed = time.monotonic(), Bench(), 0
    for name, words in chosen:
        left = options.budget - (time.monotonic() - start)
        print(f"== {name}: {left:.0f} s left", flush=True)
        failed |= attempt([*MODEL, *words, *options.overrides, f"results={options.results}"], bench, left)
    return failed


def attempt(words: list[str], bench: Bench, left: float) -> int:
    """Run one command if it is likely to end in time; 0, or 1 where a cell of it failed."""
    try:
        configs = [compose("bench", each) for each in expand("bench", words)]
        bound = sum(each.estimate() or 0.0 for each in prepare(configs)[0])
        if left < 2 * bound + CONSTANT:
            print(f"   left out: {bound:.0f} s at the bound", flush=True)
            return 0
        return sweep(configs, bench, ["bench", *words])
    except UserError as error:
        print(f"   refused: {error}", flush=True)
        return 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=480, help="seconds")
    parser.add_argument("--cells", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--results", default="results", help="folder; rows go to its throughput/")
    parser.add_argument("--list", action="store_true", help="print names and commands, and stop")
    parser.add_argument("overrides", nargs="*", help="for every command, after --")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

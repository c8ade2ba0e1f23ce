"""``kernels``: every kernel at every shape, checked against its specification and timed beside its floor and peers.

Rows land in results/kernels/<shapes>.csv as they are made (columns: ``throughput.kernel_bench.Row``, then where and
how); ``report`` draws them.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from omegaconf import DictConfig

from sawbench.core.errors import UserError, illegal
from sawbench.throughput.device import copy_bandwidth
from sawbench.throughput.kernel_bench import FAMILIES, SHAPES, Row, measure_shape
from sawbench.throughput.kernel_cases import PEERS, Case
from sawbench.throughput.ledger import Ledger, provenance

HEADER = f"{'kernel':<24} {'shape':<30} {'floor us':>9} {'us':>9} {'TB/s':>6} {'bound':>6} {'x BF16':>7} {'error':>8}"


def main(config: DictConfig) -> int:
    """0, or 1 where a kernel of ours was wrong or failed.

    Raises:
        UserError: an unknown family, kernel or set of shapes, or no CUDA device.
    """
    families, wanted = choose(config)
    if not torch.cuda.is_available():
        raise UserError("kernels are timed on a CUDA device, and there is none: `sawbench doctor` says what runs here")
    device = torch.device("cuda", torch.cuda.current_device())
    bandwidth = copy_bandwidth(device)
    print(f"{torch.cuda.get_device_name(device)}: copy {bandwidth / 1e12:.2f} TB/s\n{HEADER}", flush=True)
    ledger = Ledger(Path(config.results) / "kernels" / f"{config.shapes}.csv")
    record = provenance() | {"copy_tb_per_s": bandwidth / 1e12}
    wrong = 0
    for family in families:
        for shape in SHAPES[family][config.shapes]:
            cases = [case for case in FAMILIES[family](shape) if wanted(case)]
            for row in measure_shape(cases, device, bandwidth):
                print(line(row), flush=True)
                ledger.write(label(row), [{**asdict(row), **record}])
                wrong += row.note.startswith(("wrong", "failed")) and not row.kernel.startswith(PEERS)
    print(f"\nwritten: {ledger.path}")
    return int(wrong > 0)


def choose(config: DictConfig) -> tuple[list[str], Callable[[Case], bool]]:
    """Families, and whether a case is wanted. Raises UserError for names that do not exist."""
    if config.shapes not in SHAPES["paged_decode"]:
        raise illegal("shapes", config.shapes, SHAPES["paged_decode"])
    families = [config.families] if isinstance(config.families, str) else list(config.families)
    _all_legal("families", families, FAMILIES)
    if config.kernels == "all":
        return families, lambda case: True
    names = [config.kernels] if isinstance(config.kernels, str) else list(config.kernels)
    _all_legal("kernels", names, {c.kernel for f in families for c in FAMILIES[f](SHAPES[f]["quick"][0])})
    return families, lambda case: case.kernel in names


def _all_legal(option: str, names: Iterable[str], legal: Iterable[str]) -> None:
    for name in names:
        if name not in set(legal):
            raise illegal(option, name, sorted(legal))


def label(row: Row) -> str:
    """What makes a row the same measurement again."""
    return f"{row.family}/{row.kernel}/{shape_of(row)}"


def shape_of(row: Row) -> str:
    heads = f"{row.query_heads}/{row.kv_heads}"
    return f"{row.batch}x{row.context} {heads} d{row.head_dim} p{row.page_size}"


def line(row: Row) -> str:
    """One row for the terminal; a row without a time says why."""
    start = f"{row.kernel:<24} {shape_of(row):<30} {row.floor_us:9.1f}"
    if row.time_us is None:
        return f"{start} {row.note}"
    ratio = f"{row.vs_bf16:7.2f}" if row.vs_bf16 else f"{'-':>7}"
    return f"{start} {row.time_us:9.1f} {row.tb_per_s:6.2f} {row.fraction:6.2f} {ratio} {row.error:8.1e}"

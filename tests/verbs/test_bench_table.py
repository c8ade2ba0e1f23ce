"""The table that ``bench`` prints."""

from typing import Any

from sawbench.verbs.bench_table import results


def row(method: str, rate: float, pool: float | None) -> dict[str, Any]:
    place = {"model": "qwen3-8b", "load": "d16384_1024", "concurrency": 64}
    return {**place, "method": method, "output_tps": rate, "ttft_ms": 100.0, "pool_bytes": pool}


def test_a_ratio_is_to_bf16_in_the_same_pool() -> None:
    """Of one budget, whatever the size of a page; a row that knows no pool has no ratio."""
    rows = [row("bf16", 700, 58.888e9), row("int4", 1400, 58.899e9), row("int4", 1500, 114e9), row("peer", 70, None)]
    last = [line.split()[-1] for line in results(rows).splitlines()[-4:]]
    assert last == ["1.000", "2.000", "-", "-"]

"""What ``bench`` prints: seconds before, and tokens per second after."""

from collections.abc import Mapping, Sequence
from typing import Any

from sawbench.core.records import pool_gigabytes
from sawbench.throughput.bench import Row
from sawbench.verbs.bench_cells import Cell
from sawbench.verbs.table import table

COLUMNS = {
    "output tok/s": "output_tps",
    "per request": "output_tps_request",
    "TTFT ms": "ttft_ms",
    "TPOT ms": "tpot_ms",
    "admitted": "admitted_mean",
    "of bound": "of_bound",
}
PLAIN = (
    "base", "row", "batch", "context", "step_ms", "floor_ms", "over_floor", "step_us", "value", "step_a_ms",
    "step_b_ms", "overhead_pct", "low_pct", "high_pct", "wall_s", "output_tps",
)  # fmt: skip


def estimates(cells: Sequence[Cell]) -> str:
    """Device seconds of every cell at its bound on the card that ``gpu`` names, and their sum."""
    rows, total = [], 0.0
    for cell in cells:
        bound = cell.bound()
        total += bound.seconds if bound else 0.0
        numbers = [f"{bound.seconds:.1f}", f"{bound.output_tps:.0f}", str(bound.admitted)] if bound else ["-", "-", "0"]
        rows.append([cell.label, str(cell.load.requests), *numbers])
    head = ["cell", "requests", "seconds", "output tok/s", "admitted"]
    gpu = cells[0].config.gpu.name if cells else ""
    return f"{table(head, rows)}\n\nat the bound of gpu={gpu}: {total:.0f} s of device time, warm-up left out"


def results(rows: Sequence[Row]) -> str:
    """A line a cell; of loads with its ratio to BF16 of the same model, load, pool and chunk. Failures below."""
    measured = [row for row in rows if not row.get("error")]
    loads = [row for row in measured if row.get("ttft_ms")]
    text = _loads(loads) if loads else _plain(measured)
    return "\n".join(
        [text, *(f"FAILED {_label(row)} {row['load']}: {row['error']}" for row in rows if row.get("error"))]
    )


def _loads(rows: Sequence[Row]) -> str:
    base = {_place(row): float(row["output_tps"]) for row in rows if row["method"] == "bf16"}
    lines = [
        [_label(row), str(row["load"]), str(row["concurrency"]), *(_number(row.get(name)) for name in COLUMNS.values()),
         _ratio(row, base)]
        for row in rows
    ]  # fmt: skip
    return table(["method", "load", "concurrency", *COLUMNS, "vs bf16"], lines)


def _plain(rows: Sequence[Row]) -> str:
    """The numbers of whatever else was measured, as its file names them."""
    names = [name for name in PLAIN if any(row.get(name) not in (None, "") for row in rows)]
    lines = [[_label(row), *(_number(row.get(name)) for name in names)] for row in rows]
    return table(["method", *names], lines)


def _place(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What two rows share that may be compared."""
    pool = pool_gigabytes(float(row.get("pool_bytes") or 0))
    return *(str(row.get(name)) for name in ("model", "load", "concurrency", "chunk")), str(pool)


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['method']} {row.get('options') or ''}".strip()


def _number(value: Any) -> str:
    try:
        return "-" if value in (None, "") else f"{float(value):.4g}"
    except ValueError:
        return str(value)


def _ratio(row: Mapping[str, Any], base: Mapping[tuple[str, ...], float]) -> str:
    found = base.get(_place(row))
    return f"{float(row['output_tps']) / found:.3f}" if found else "-"

"""Scores beside the baseline: paired, corrected, and never a verdict that the data cannot carry."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sawbench.core.records import Metric, TaskResult
from sawbench.report import accuracy
from sawbench.report.content import Table
from sawbench.report.records import Number, Study
from sawbench.results import RunStore, write_tidy


def add(store: RunStore, method: str, values: Sequence[float | None], repeats: int = 1, engine: str = "hf") -> str:
    cell = store.cell({"model": "toy", "method": method, "task": "humaneval", "engine": engine})
    assert cell.claim()
    rows = [{"item": f"q/{i // repeats}", "repeat": i % repeats, "value": v} for i, v in enumerate(values)]
    kept = [v for v in values if v is not None]
    metrics = (Metric("pass@1", 100 * float(np.mean(kept)), "%"), Metric("truncated", 3.0, "%"))
    cell.finish(TaskResult(metrics, {"scores": rows}))
    cell.release()
    return cell.run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


def only_table(store: RunStore) -> dict[str, dict[str, object]]:
    """Rows by method, cells by column."""
    write_tidy(store)
    (table,) = accuracy.tables(Study.read(store.root))
    return {str(row[0]): dict(zip(table.columns, row, strict=True)) for row in table.rows}


BEST = [1.0] * 110 + [0.0] * 54


def test_a_collapse_a_rescue_and_the_baseline(store: RunStore) -> None:
    add(store, "bf16", BEST)
    add(store, "int4", [0.0] * 164)
    run = add(store, "kbias_bdr", [0.0] * 2 + [1.0] * 108 + [1.0] * 3 + [0.0] * 51)
    rows = only_table(store)
    assert [row["verdict"] for row in rows.values()] == ["cannot tell", "baseline", "worse"]
    rescued = rows["kbias_bdr"]
    difference, recovered = rescued["difference to bf16 (points)"], rescued["recovered (share)"]
    assert isinstance(difference, Number)
    assert isinstance(recovered, Number)
    assert difference.value == pytest.approx(100 / 164)
    assert difference.low is not None
    assert difference.low > -6
    assert recovered.value == pytest.approx(111 / 110)
    assert rescued["run"] == recovered.run == run
    detectable = rescued["detectable (points)"]
    assert isinstance(detectable, Number)
    assert 2 < detectable.value < 10


def test_nothing_is_recovered_where_int4_is_not_shown_to_lose(store: RunStore) -> None:
    add(store, "bf16", BEST)
    add(store, "int4", [0.0, 0.0, *BEST[2:-1], 1.0])
    add(store, "bdr", [0.0, *BEST[1:]])
    assert only_table(store)["bdr"]["recovered (share)"] is None


def test_unscored_answers_are_left_out_of_the_pairs_and_not_wrong(store: RunStore) -> None:
    add(store, "bf16", BEST)
    add(store, "bdr", [None] * 60 + BEST[60:])
    difference = only_table(store)["bdr"]["difference to bf16 (points)"]
    assert isinstance(difference, Number)
    assert difference.value == 0


def test_repeats_are_clusters_of_their_item(store: RunStore) -> None:
    rng = np.random.default_rng(0)
    once = rng.binomial(1, 0.6, 40).astype(float)
    other = rng.binomial(1, 0.5, 40).astype(float)
    add(store, "bf16", np.repeat(once, 5).tolist(), repeats=5)
    add(store, "bdr", np.repeat(other, 5).tolist(), repeats=5)
    repeated = only_table(store)["bdr"]["detectable (points)"]
    assert isinstance(repeated, Number)
    assert repeated.value > 15


def test_another_setting_is_another_table(store: RunStore) -> None:
    add(store, "bf16", BEST)
    add(store, "bdr", BEST, engine="paged")
    write_tidy(store)
    tables = list(accuracy.tables(Study.read(store.root)))
    assert [len(table.rows) for table in tables] == [1, 1]
    assert {row[tables[0].columns.index("verdict")] for table in tables for row in table.rows} == {
        "baseline",
        "no pairs",
    }


def test_every_table_says_what_its_columns_mean(store: RunStore) -> None:
    add(store, "bf16", BEST)
    write_tidy(store)
    (table,) = accuracy.tables(Study.read(store.root))
    assert isinstance(table, Table)
    assert any("Holm" in note for note in table.notes)

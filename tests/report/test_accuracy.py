"""Scores beside the baseline: paired, corrected, and never a verdict that the data cannot carry."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawbench.core.records import Metric, TaskResult
from sawbench.report import accuracy
from sawbench.report.content import Table
from sawbench.report.records import Number, Study
from sawbench.results import RunStore, write_tidy


def add(
    store: RunStore,
    method: str,
    values: Sequence[float | None],
    repeats: int = 1,
    *,
    more: Sequence[Metric] = (),
    seed: int = 0,
    commit: str = "abc",
    conditions: Mapping[str, Any] | None = None,
    **identity: str,
) -> str:
    task = {"model": "toy", "method": method, "task": "humaneval", "engine": "hf"}
    cell = store.cell({**task, **identity, "seed": seed, "version": commit, "items": len(values), "asked": conditions})
    assert cell.claim()
    cell.environment({"commit": commit})
    rows = [{"item": f"q/{i // repeats}", "repeat": i % repeats, "value": v} for i, v in enumerate(values)]
    kept = [v for v in values if v is not None]
    score = Metric("pass@1", 100 * float(np.mean(kept)) if kept else None, "%", n=len(kept))
    metrics = (score, *more, Metric("no_answer", 70.0, "%"), Metric("truncated", 3.0, "%"))
    cell.finish(TaskResult(metrics, {"scores": rows, "conditions": [dict(conditions or {})]}))
    cell.release()
    return cell.run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


def all_tables(store: RunStore) -> list[Table]:
    write_tidy(store)
    return list(accuracy.tables(Study.read(store.root)))


def column(table: Table, name: str) -> list[object]:
    return [row[table.columns.index(name)] for row in table.rows]


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


@pytest.mark.parametrize(
    ("values", "other"),
    [
        (BEST, {"engine": "paged"}),
        (BEST, {"seed": 1}),
        (BEST, {"conditions": {"num_fewshot": 5}}),
        (BEST[:40], {}),
        (BEST + BEST, {}),
    ],
    ids=["engine", "seed", "condition", "fewer items", "more items"],
)
def test_another_setting_is_another_table(store: RunStore, values: list[float], other: dict[str, Any]) -> None:
    """Of an engine, a seed or a number of items: compared with its own baseline alone, and named by what differs."""
    add(store, "bf16", BEST)
    add(store, "bdr", values, **other)
    apart = all_tables(store)
    assert sorted(str(column(table, "verdict")) for table in apart) == ["['baseline']", "['no pairs']"]
    assert len({table.name for table in apart}) == 2
    add(store, "bf16", values, **other)
    alone, both = sorted(all_tables(store), key=lambda table: len(table.rows))
    assert column(alone, "verdict") == ["baseline"]
    assert sorted(map(str, column(both, "verdict"))) == ["baseline", "cannot tell"]


def test_two_runs_of_one_name_say_what_tells_them_apart(store: RunStore) -> None:
    add(store, "bf16", BEST)
    add(store, "bdr", BEST, commit="abc")
    add(store, "bdr", BEST[::-1], commit="def")
    assert {*only_table(store)} == {"bf16", "bdr (commit abc)", "bdr (commit def)"}


@pytest.mark.parametrize("unscored", ["bdr", "bf16"])
def test_a_run_without_a_score_shows_none_and_is_compared_with_nothing(store: RunStore, unscored: str) -> None:
    """Whichever other metrics it has: none of them is a score."""
    for method in ("bf16", "bdr"):
        add(store, method, [None] * 164 if method == unscored else BEST)
    rows = only_table(store)
    assert {method: row["verdict"] for method, row in rows.items()} == {
        "bf16": "unscored" if unscored == "bf16" else "baseline",
        "bdr": "unscored" if unscored == "bdr" else "no pairs",
    }
    assert rows[unscored]["pass@1 (%)"] is None
    assert all(row["difference to bf16 (points)"] is None for row in rows.values())
    assert [*rows][-1] == unscored


def test_what_a_score_rests_on_stands_beside_it(store: RunStore) -> None:
    """Items, answers, the clustered error, and the other scores that a run has."""
    once = np.array([1.0] * 25 + [0.0] * 15)
    add(store, "bf16", np.repeat(once, 5).tolist(), repeats=5, more=[Metric("pass@5", 62.5, "%", 47.0, 75.8, 40)])
    add(store, "bdr", np.repeat(once, 5)[:-2].tolist() + [None] * 2, repeats=5)
    rows = only_table(store)
    full, partial = rows["bf16"], rows["bdr"]
    assert (full["items"], full["answers"]) == (Number(40, run=str(full["run"])), Number(200, run=str(full["run"])))
    assert partial["answers"] == Number(198, run=str(partial["run"]))
    error = full["standard error (points)"]
    assert isinstance(error, Number)
    assert error.value == pytest.approx(100 * once.std(ddof=1) / 40**0.5)
    assert full["pass@5 (%)"] == Number(62.5, 47.0, 75.8, str(full["run"]))
    assert partial["pass@5 (%)"] is None


GROUP = {"group": 0.55, "one": 0.8, "two": 0.3}
"""A group of two tasks of lm-eval: its mean has no items, in the way of what its tasks have."""


def add_group(store: RunStore, method: str, with_items: Sequence[str], *, named: bool) -> None:
    """Scores of the tasks in ``with_items``; ``named``: their rows say whose they are."""
    cell = store.cell({"model": "toy", "method": method, "task": "group"})
    assert cell.claim()
    metrics = [
        Metric(f"{task}/acc,none", 100 * share, "%", 100 * share - 9, 100 * share + 9, 100)
        if task != "group" else Metric(f"{task}/acc,none", share, "", n=200)
        for task, share in GROUP.items()
    ]  # fmt: skip
    rows = [
        {"item": i, "repeat": 0, "value": float(i < 100 * GROUP[task])}
        | ({"metric": f"{task}/acc,none"} if named else {})
        for task in with_items
        for i in range(100)
    ]
    cell.finish(TaskResult(tuple(metrics), {"scores": rows}))
    cell.release()


@pytest.mark.parametrize(("with_items", "named"), [(["one", "two"], True), (["two"], True), (["two"], False)])
def test_every_subtask_has_its_score_and_only_its_own_items(
    store: RunStore, with_items: Sequence[str], named: bool
) -> None:
    for method in ("bf16", "int4"):
        add_group(store, method, with_items, named=named)
    *compared, rest = all_tables(store)
    assert [table.columns[1] for table in compared] == [f"{task}/acc,none (%)" for task in with_items]
    assert len({table.name for table in (*compared, rest)}) == len(compared) + 1
    for table, task in zip(compared, with_items, strict=True):
        assert [score.value for score in column(table, table.columns[1]) if isinstance(score, Number)] == [
            100 * GROUP[task]
        ] * 2
        assert column(table, "items")[0] == Number(100, run=str(column(table, "run")[0]))
    others = [f"{task}/acc,none" for task in GROUP if task not in with_items]
    assert column(rest, "score") == [name for name in others for _ in range(2)]


def test_every_table_says_what_its_columns_mean(store: RunStore) -> None:
    add(store, "bf16", BEST)
    write_tidy(store)
    (table,) = accuracy.tables(Study.read(store.root))
    assert isinstance(table, Table)
    assert any("Holm" in note for note in table.notes)

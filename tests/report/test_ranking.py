"""The order of methods under a load, beside the paper's."""

import pandas as pd

from sawbench.report import ranking
from sawbench.report.paper_loads import PaperCell

PAPER = {"bf16": 1.0, "int4": 1.121, "bdr": 1.148, "kmeans centroids=256": 0.405}


def test_the_same_order_is_said_and_noise_is_no_order() -> None:
    ours = {"bf16": 1.0, "int4": 1.305, "bdr": 1.30, "kmeans centroids=256": 0.9, "int8": 1.2}
    assert "has the same order of bf16, int4, bdr, kmeans centroids=256" in ranking.order(ours, PAPER)


def test_every_pair_in_another_order_is_named() -> None:
    ours = {"bf16": 1.0, "int4": 1.5, "bdr": 1.3, "kmeans centroids=256": 1.2}
    said = ranking.order(ours, PAPER)
    assert "bdr above int4 there, below it here" in said
    assert "bf16 above kmeans centroids=256 there, below it here; " in said
    assert "int4 above bf16" not in said


def test_two_methods_are_no_ranking() -> None:
    assert ranking.order({"bf16": 1.0, "int4": 1.5}, PAPER).startswith("Too few")


def test_only_the_papers_load_is_table_1() -> None:
    def cell(load: str, level: int) -> tuple[tuple[str, str, str, int], PaperCell]:
        key = ("qwen3-8b", "int4", load, level)
        return key, PaperCell(key, 1.1 if level == 32 else 9.0, None, "")

    assert ranking.table1(dict([cell("d8192_1024", 16), cell("d8192_1024", 32)]), "qwen3-8b") == {"int4": 1.1}


def test_a_load_that_enough_methods_ran_has_a_figure_in_falling_order() -> None:
    rows = [
        {"model": "m", "label": label, "load": "d256_1024", "concurrency": level, "ratio": ratio, "bound_ratio": 1.4}
        for level, labels in ((32, ("bf16", "int4", "bdr", "int8")), (64, ("bf16", "int4")))
        for label, ratio in zip(labels, (1.0, 1.3, 1.2, float("nan") if level == 64 else 1.1), strict=False)
    ]
    (drawing,) = ranking.drawings(pd.DataFrame(rows), {}, "bench")
    assert drawing.name == "ranking-bench-m-d256-1024-x32"
    assert [bar.get_width() for bar in drawing.figure.axes[0].patches] == [1.3, 1.2, 1.1, 1.0]

"""The kernels' figures: curves over context where there are several, a bar a kernel where each batch has one."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from sawbench.report import kernels
from sawbench.report.content import Drawing
from sawbench.report.records import Study

SHAPE = {"query_heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 128, "error": 0.0, "note": ""}


def study(shapes: Sequence[tuple[int, int]]) -> Study:
    rows = [
        {"family": "paged_decode", "kernel": kernel, "batch": batch, "context": context, "time_us": 10.0,
         "floor_us": 10 * share, "fraction": share, "vs_bf16": float("nan"), **SHAPE}
        for batch, context in shapes
        for kernel, share in (("int4", 0.5), ("bf16_paged", 1.02))
    ]  # fmt: skip
    return Study(Path(), {}, {}, {"grid": pd.DataFrame(rows)}, {})


def only_drawing(found: Study) -> Drawing:
    (drawing,) = [part for part in kernels.contents(found) if isinstance(part, Drawing)]
    return drawing


def test_one_context_a_batch_makes_bars_that_say_their_value() -> None:
    panels = only_drawing(study([(16, 16384), (1, 32768)])).figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["1 x 32k", "16 x 16k"]
    for axes in panels:
        assert [bar.get_width() for bar in axes.patches] == [0.5, 1.02]
        assert {text.get_text().strip() for text in axes.texts} == {"0.50", "1.02"}


def test_several_contexts_make_a_line_a_kernel() -> None:
    (axes,) = only_drawing(study([(16, 2048), (16, 16384)])).figure.axes
    lines = [list(line.get_ydata()) for line in axes.lines]
    assert [0.5, 0.5] in lines
    assert [1.02, 1.02] in lines


def test_a_bound_that_is_passed_is_explained() -> None:
    assert "a kernel that only reads can pass 1" in only_drawing(study([(1, 32768)])).caption


@pytest.mark.parametrize("kernel", ["sdpa_cudnn", "flashinfer"])
def test_peers_are_grey(kernel: str) -> None:
    assert kernels.tint(kernel) == "#777777"

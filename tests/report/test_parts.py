"""The pieces that a figure or a table is made of."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.study import key_profile
from sawbench.report import keys, sensitivity
from sawbench.report.content import Table, digits, text_of
from sawbench.report.keys import peak, worst_head
from sawbench.report.markdown import markdown
from sawbench.report.naming import names, telling
from sawbench.report.pareto import _frontier, pareto, points
from sawbench.report.records import Number, Run, Study, servable
from sawbench.report.style import FAMILIES, colour, spread, within


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.06, "0.06"), (12.0567, "12.06"), (2.34e-5, "2.3e-05"), (147456.0, "147,456"), (0.9995, "0.9995")],
)
def test_digits(value: float, text: str) -> None:
    assert digits(value) == text


def test_nothing_measured_is_a_dash_never_a_zero() -> None:
    assert text_of(None) == "-"
    assert text_of(Number(0.0)) == "0"


def test_markdown_keeps_pipes_out_of_the_grid() -> None:
    text = markdown(Table("t", "Title", ["a|b", "n"], [["x|y", Number(1.0, 0.5, 1.5)]], ["note"]))
    assert text.splitlines()[2:5] == ["| a\\|b | n |", "| --- | ---: |", "| x\\|y | 1 [0.5, 1.5] |"]


def test_files_are_named_after_what_tells_their_settings_apart() -> None:
    """No number that the next run would shift: the model alone, or with the phrases that no other setting has."""
    told = names([
        ("a", "hf, naive, prompts 8"),
        ("b", "hf, naive, bfloat16, text answers, prompts 64"),
        ("b", "hf, naive, float32, text answers, prompts 16"),
        ("b", "hf, naive, float32, text README.md, prompts 5"),
        ("c", "paged, bfloat16"),
        ("c", "paged, bfloat16, window 4"),
    ])  # fmt: skip
    assert [*told.values()] == [
        "a", "b-bfloat16-text-answers", "b-float32-text-answers", "b-float32-text-readme.md", "c", "c-window-4",
    ]  # fmt: skip


@given(st.lists(st.text("ab, ", min_size=1).map(str.strip), min_size=1, max_size=6, unique=True))
def test_no_two_settings_share_their_words(settings: list[str]) -> None:
    assert len(set(telling(settings))) == len(settings)


@given(st.lists(st.floats(-1e3, 1e3), max_size=20), st.floats(0.1, 50))
def test_labels_never_overlap_and_stay_in_order(wanted: list[float], gap: float) -> None:
    placed = np.array(spread(wanted, gap))
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(placed[order]) >= gap - 1e-6).all()


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert spread([30.0, 0.0, 15.0], 10) == [30.0, 0.0, 15.0]
    assert spread([0.0, 0.0], 10) == [-5.0, 5.0]


def test_labels_stay_above_the_axis_in_their_order() -> None:
    assert within([50.0, 0.0, 0.0, -3.0], low=5.0, high=99.0, gap=10.0) == [50.0, 15.0, 25.0, 5.0]
    assert within([50.0, 98.0, 99.0, 120.0], low=5.0, high=99.0, gap=10.0) == [50.0, 79.0, 89.0, 99.0]
    assert within([0.0] * 3, low=5.0, high=15.0, gap=10.0) == [-5.0, 5.0, 15.0], "no room for all: the title stays free"
    assert spread(within([0.0, 0.0, 40.0], 5.0, 99.0, 10.0), 10.0) == pytest.approx([5.0, 15.0, 40.0])
    both = spread(within([100.0] * 5 + [0.0] * 5, 5.0, 95.0, 10.0), 10.0)
    assert sorted(both) == pytest.approx([5.0 + 10.0 * at for at in range(10)])


def test_the_frontier_keeps_what_nothing_beats() -> None:
    points = [(4.25, 0.15), (4.25, 0.06), (6.25, 0.1), (8.25, 0.01), (16.0, 0.0001)]
    assert _frontier(points) == [(4.25, 0.06), (8.25, 0.01), (16.0, 0.0001)]


def test_what_a_logarithm_cannot_show_has_no_point_and_equal_bits_stand_aside() -> None:
    def run(method: str, kl: float, bits: float = 4.25) -> Run:
        return Run({"method": method, "options": "", "run": method}, {"kl": Number(kl), "bits_per_value": Number(bits)})

    runs = [run("int4", 0.2), run("bdr", 0.1), run("exact", 0.0), run("bf16", 1e-5, 16.0)]
    shown = points(runs, lambda r: r.metrics.get("kl"))
    assert [point.run.id for point in shown] == ["bdr", "int4", "bf16"]
    assert shown[0].x < 4.25 < shown[1].x
    assert shown[2].x == 16
    assert all(abs(point.x / point.bits - 1) < 0.1 for point in shown)


def test_families_keep_their_colour_and_strangers_get_one() -> None:
    assert colour("bdr_kv order=64") == colour("bdr") == FAMILIES["bdr"]
    assert colour("unheard-of").startswith("#")


def test_rotation_lowers_the_peak_of_the_worst_head() -> None:
    rows = pd.read_csv(io.StringIO(key_profile()))
    before, after = (rows[rows["stage"] == stage] for stage in ("before", "after"))
    layer, head = worst_head(before)
    assert layer == 3
    assert peak(before, layer, head) > 4 * peak(after, layer, head)


def test_heads_that_keep_more_bits_carry_their_number(tmp_path: Path) -> None:
    lines = [f"toy,{layer},{head},key,0.{layer}{head},{8 if head else 4}" for layer in range(3) for head in range(2)]
    (tmp_path / "mixed_sensitivity.csv").write_text("\n".join(["model,layer,head,side,error,bits", *lines]) + "\n")
    (drawing,) = sensitivity.drawings(Study.read(tmp_path))
    assert [text.get_text() for text in drawing.figure.axes[0].texts] == ["8"] * 3


def test_every_method_has_a_panel_for_what_it_makes_of_the_same_keys() -> None:
    rows = [
        {"model": "m", "method": method, "options": "", "layer": 0, "head": 0, "channel": channel, "stage": stage,
         "absmax": peak + channel, "rms": 1.0}
        for method, after in (("bdr", 20.0), ("kbias_bdr", 2.0))
        for stage, peak in (("before", 100.0), ("after", after))
        for channel in range(4)
    ]  # fmt: skip
    staged = keys.staged(pd.DataFrame(rows))
    assert list(dict.fromkeys(staged["stage"])) == ["before", "after bdr", "after kbias_bdr"]
    assert list(staged.groupby("stage")["absmax"].max()) == [23.0, 5.0, 103.0]
    figure = keys.profile("k", "m", staged, "x").figure
    assert {text.get_text() for text in figure.axes[-1].texts} == set(staged["stage"])


def test_what_pages_cannot_hold_says_why_and_silence_is_no_verdict() -> None:
    runs = [
        Run({"run": name, "method": name, "options": ""}, {}, {}, reason)
        for name, reason in (("int4", ""), ("kivi4", "keys by channel"), ("old", None))
    ]
    head, cells, notes = servable(runs)
    assert head == ["servable"]
    assert cells == {"int4": ["yes"], "kivi4": ["no"], "old": [""]}
    assert notes == ["Not servable from pages: kivi4, keys by channel."]
    assert servable(runs[2:]) == ([], {"old": []}, [])


@pytest.mark.parametrize(("said", "expected"), [("True,", ""), ("False,no pages", "no pages"), (",", None)])
def test_whether_a_run_is_servable_is_read_from_its_record(said: str, expected: str | None, tmp_path: Path) -> None:
    keys = "model,method,options,task,engine,attention,prefill,dtypes,run"
    row = "m,kivi4,,fidelity,hf,naive,quantized,,r1"
    (tmp_path / "metrics.csv").write_text(f"{keys},metric,value,unit,low,high,n\n{row},kl,0.1,nats,,,\n")
    (tmp_path / "runs.csv").write_text(f"{keys},servable,servable_reason\n{row},{said}\n")
    (run,) = Study.read(tmp_path).runs()
    assert run.unservable == expected


def test_each_method_has_its_own_floor_and_no_interval_takes_the_picture() -> None:
    def run(name: str, kl: float, floor: float) -> Run:
        metrics = {"kl": Number(kl, 1e-9, kl * 2), "kl_floor": Number(floor), "bits_per_value": Number(4.25)}
        return Run({"run": name, "method": name, "options": ""}, metrics)

    axes = pareto("p", ("m", "setting"), [run("int4", 0.1, 0.02), run("bdr", 0.05, 0.01)]).figure.axes[0]
    dashes = sorted(float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "_")
    assert dashes == [0.01, 0.02]
    assert axes.get_ylim()[0] == pytest.approx(0.05 / 2.5)

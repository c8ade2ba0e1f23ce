"""report.html in a real browser: it opens offline, says nothing on the console, sorts, shows its figures, and links."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.browser import CHROMIUM, Browser
from sawbench.report.page import run_table
from sawbench.report.records import Study

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian package chromium)")


@pytest.fixture(scope="module")
def browser(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        found.open((built / "report.html").as_uri())
        yield found


@needs_browser
def test_nothing_on_the_console_and_no_request_off_the_page(browser: Browser, built: Path) -> None:
    browser.evaluate("document.querySelectorAll('th button').forEach((button) => button.click())")
    assert browser.of("Runtime.exceptionThrown") == []
    assert browser.of("Runtime.consoleAPICalled") == []
    assert browser.of("Log.entryAdded") == []
    asked = {event["request"]["url"].split(":")[0] for event in browser.of("Network.requestWillBeSent")}
    assert asked <= {"file", "data"}
    pages = [e["request"]["url"] for e in browser.of("Network.requestWillBeSent") if e["request"]["url"][:4] == "file"]
    assert pages == [(built / "report.html").as_uri()]


@needs_browser
def test_the_guards_of_this_test_see_an_error_and_a_request(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>undefinedName()</script>")
    with Browser(tmp_path / "profile") as other:
        other.open(bad.as_uri())
        assert other.of("Runtime.exceptionThrown")
        assert any(e["request"]["url"].startswith("http:") for e in other.of("Network.requestWillBeSent"))


@needs_browser
def test_every_figure_shows(browser: Browser, built: Path) -> None:
    sizes = browser.evaluate(
        "Promise.all([...document.images].map((i) => i.decode().then(() => [i.naturalWidth, i.clientWidth])))"
    )
    assert len(sizes) == len(list((built / "figures").glob("*.svg"))) > 0
    assert all(natural > 300 and shown > 300 for natural, shown in sizes)


@needs_browser
def test_a_click_sorts_by_value_and_a_second_one_turns_it_round(browser: Browser) -> None:
    column = """[...document.querySelectorAll('#fidelity-toy-135m tbody tr')].map((r) => r.cells[2].dataset.value)"""
    head = "document.querySelectorAll('#fidelity-toy-135m th')[2]"
    browser.evaluate(f"{head}.removeAttribute('aria-sort'), {head}.querySelector('button').click()")
    rising = [float(value) for value in browser.evaluate(column)]
    assert rising == sorted(rising)
    assert len(set(rising)) == 11
    browser.evaluate(f"{head}.querySelector('button').click()")
    assert [float(value) for value in browser.evaluate(column)] == rising[::-1]
    assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"


@needs_browser
def test_every_number_links_to_the_row_of_its_run(browser: Browser, built: Path) -> None:
    broken = "[...document.querySelectorAll('a[href^=\"#\"]')].filter((a) => !document.getElementById(a.hash.slice(1)))"
    assert browser.evaluate(f"{broken}.map((a) => a.hash)") == []
    loose = "[...document.querySelectorAll('#fidelity td.number[data-value]')].filter((td) => !td.querySelector('a'))"
    assert browser.evaluate(f"{loose}.length") == 0
    for run in Study.read(built).runs():
        row = browser.evaluate(f"document.getElementById('run-{run.id}').textContent")
        assert f"run method={run.keys['method']}" in row


@needs_browser
def test_every_method_has_a_section(browser: Browser, built: Path) -> None:
    sections = browser.evaluate("[...document.querySelectorAll('section h2')].map((h) => h.textContent)")
    assert {run.keys["method"] for run in Study.read(built).runs()} <= set(sections)


def test_text_from_results_cannot_become_markup(results: Path) -> None:
    from sawbench.report.build import contents
    from sawbench.report.page import page

    text = (results / "metrics.csv").read_text()
    (results / "metrics.csv").write_text(text.replace("toy-1.5b", "<script>alert(1)</script>"))
    study = Study.read(results)
    sections = [section for section in contents(study) if section.id == "accuracy"]
    assert "<script>alert" not in page(study, sections)
    assert len(re.findall("<script", page(study, sections))) == 1


def test_a_bench_row_has_its_card_where_a_run_has_its_gpus(tmp_path: Path) -> None:
    """``gpus`` counts cards in results/throughput and names them in runs.csv; several rows of one cell are one run."""
    (tmp_path / "throughput").mkdir()
    head = "model,method,run,device,date,commit,dirty,versions,command,row,value,gpus"
    rows = [f"m,int4,r1,H200,2026-01-01,c,False,v,bench,{part},7,1" for part in ("MatMul", "Attention")]
    (tmp_path / "throughput" / "split.csv").write_text("\n".join([head, *rows]) + "\n")
    runs = "model,method,options,task,engine,attention,prefill,dtypes,run,date,gpus,value,command"
    (tmp_path / "runs.csv").write_text(f"{runs}\nm,bdr,,fidelity,hf,naive,quantized,,r0,2026-01-01,,INT4,run\n")
    (table,) = run_table(Study.read(tmp_path))
    found = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert len(table.rows) == 2
    assert (found["r1"]["gpus"], found["r1"]["value"]) == ("H200", "")
    assert (found["r0"]["gpus"], found["r0"]["value"]) == ("", "INT4")

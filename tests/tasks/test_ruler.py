"""The generated long-context set: every puzzle can be solved from its text, and only so."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.stub import DictSink, StubEngine, StubTokenizer
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import TaskResult
from sawbench.tasks.base import TaskContext
from sawbench.tasks.ruler import CHAIN, KINDS, Ruler

TASK = Ruler(lengths=(1200, 2500), samples=2)


def solve(prompt: str) -> str:
    """What a reader with a perfect memory answers."""
    asked = re.search(r"What is the special number of (\w+)\?", prompt)
    if asked:
        numbers = dict(re.findall(r"The special number of (\w+) is (\d+)\.", prompt))
        return numbers[asked[1]]
    wanted = re.search(r"through others, is (\d+)", prompt)
    assert wanted
    holds: dict[str, str] = {}
    for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", prompt):  # in order: a source is known before
        holds[name] = holds.get(source, source)
    return ", ".join(name for name, value in holds.items() if value == wanted[1])


def run(engine: StubEngine) -> TaskResult:
    return TASK.run(TaskContext(engine, lambda: engine, DictSink(), silent, 0, {}, Path()))


def test_a_perfect_reader_scores_one_and_a_silent_one_zero() -> None:
    assert run(StubEngine(solve)).metrics[0].value == 100
    result = run(StubEngine())
    assert result.metrics[0].value == 0.0
    cells = {(row["kind"], row["length"], row["n"]) for row in result.tables["ruler"]}
    assert cells == {(kind, length, 2) for kind in KINDS for length in (1200, 2500)}


def test_a_guess_at_another_key_or_chain_scores_zero() -> None:
    def wrong_key(prompt: str) -> str:
        right = solve(prompt)
        return next((n for n in re.findall(r"number of \w+ is (\d+)", prompt) if n != right), "")

    rows = run(StubEngine(wrong_key)).tables["ruler"]
    assert {row["score"] for row in rows if row["kind"] == "multi_key"} == {0.0}


def test_half_a_chain_scores_half() -> None:
    half = run(StubEngine(lambda prompt: ", ".join(solve(prompt).split(", ")[: CHAIN // 2])))
    assert {row["score"] for row in half.tables["ruler"] if row["kind"] == "variable_tracking"} == {0.5}


def test_texts_follow_from_seed_and_cell_alone() -> None:
    tokenizer = StubTokenizer()
    full = {probe.id: probe for probe in TASK.probes(tokenizer, 0)}
    part = {p.id: p for p in Ruler(kinds=("multi_key",), lengths=(2500,), samples=1).probes(tokenizer, 0)}
    assert part == {key: full[key] for key in part}
    assert full["needle-1200-0"].prompt != next(TASK.probes(tokenizer, 1)).prompt


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (Ruler(kinds=("haystack",)), r"task\.kinds=haystack is not one of: needle, multi_key, variable_tracking"),
        (Ruler(samples=0), r"task\.samples=0"),
        (Ruler(), r"of these lengths fit: \[4096\]"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_weights_load(task: Ruler, named: str) -> None:
    with pytest.raises(UserError, match=named):
        task.check(SimpleNamespace(name="tiny", max_length=4096))  # type: ignore[arg-type]

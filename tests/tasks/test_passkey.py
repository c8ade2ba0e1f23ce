"""Passkey: always right scores 1, always wrong 0, each cell on its own; prompt and answer fit the length."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.stub import DictSink, StubEngine, StubTokenizer
from sawbench.core.engine import Completion, Request
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import TaskResult
from sawbench.tasks.base import TaskContext
from sawbench.tasks.passkey import Passkey
from sawbench.tasks.retrieval import all_found, first_number

TASK = Passkey(lengths=(700, 1500), depths=(0, 50, 100), repeats=2)


def run(engine: StubEngine, sink: DictSink | None = None, seed: int = 0, task: Passkey = TASK) -> TaskResult:
    return task.run(TaskContext(engine, lambda: engine, sink or DictSink(), silent, seed, {}, Path()))


def key_of(prompt: str) -> str:
    found = re.search(r"The pass key is (\d+)", prompt)
    assert found
    return found[1]


def test_always_right_scores_one_and_always_wrong_zero_with_intervals_that_are_not_empty() -> None:
    for answer, share in ((key_of, 1.0), (lambda prompt: "I do not know", 0.0), (lambda prompt: "7", 0.0)):
        result = run(StubEngine(answer))
        found = result.metrics[0]
        assert (found.name, found.value, found.n) == ("found", 100 * share, 12)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.high
        assert [row["score"] for row in result.tables["passkey"]] == [share] * 6


def test_each_cell_is_scored_on_its_own() -> None:
    result = run(StubEngine(lambda prompt: key_of(prompt) if len(prompt) > 1000 else "none"))
    rows = {(row["length"], row["depth"]): (row["score"], row["n"]) for row in result.tables["passkey"]}
    assert rows == {(length, d): (float(length == 1500), 2) for length in (700, 1500) for d in (0, 50, 100)}


def test_prompt_and_answer_fit_the_length_together() -> None:
    engine = StubEngine(key_of)
    run(engine)
    assert all(len(r.prompt) + r.sampling.max_new_tokens <= 1500 for r in engine.asked)
    assert sum(len(r.prompt) + r.sampling.max_new_tokens <= 700 for r in engine.asked) == 6


def test_prompts_follow_from_seed_and_cell_alone() -> None:
    tokenizer = StubTokenizer()
    full = {probe.id: probe for probe in TASK.probes(tokenizer, 3)}
    part = {probe.id: probe for probe in Passkey(lengths=(1500,), depths=(50,), repeats=1).probes(tokenizer, 3)}
    assert part == {key: full[key] for key in part}
    assert full["700-0-0"].prompt != next(TASK.probes(tokenizer, 4)).prompt
    assert len({probe.expected for probe in full.values()}) == 12


def test_what_is_on_disk_is_not_asked_again() -> None:
    """Known fault 35."""
    sink, engine = DictSink(), StubEngine(key_of)
    whole = run(engine, sink)
    kept = {key: sink.done[key] for key in list(sink.done)[:5]}
    again, resumed = StubEngine(key_of), DictSink()
    resumed.done = dict(kept)
    assert run(again, resumed) == whole
    assert {r.id for r in again.asked} == set(sink.done) - set(kept)


@pytest.mark.parametrize(
    ("answer", "value"),
    [("12345", 1), ("The key is 12345.", 1), ("112345", 0), ("12345 or 99999", 1), ("99999 or 12345", 0), ("", 0)],
)
def test_the_first_number_is_the_answer(answer: str, value: float) -> None:
    assert first_number(answer, ("12345",)).value == value


@pytest.mark.parametrize(
    ("text", "opened", "value"),
    [
        ("<think>The text has 3 parts. The key is 48213</think>48213", False, 1.0),
        ("The text has 3 parts.</think>48213", True, 1.0),
        ("<think>48213</think>3", False, 0.0),
        ("<think>48213", False, 0.0),
        ("48213", True, 0.0),
    ],
)
def test_a_thought_is_no_part_of_the_answer(text: str, opened: bool, value: float) -> None:
    for verdict in (first_number, all_found):
        assert verdict(text, ["48213"], opened).value == value
    assert (all_found(text, ["48213"], opened).answer is None) is ("</think>" not in text)


def test_a_thought_that_the_prompt_opens_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = StubTokenizer.apply_chat_template
    monkeypatch.setattr(StubTokenizer, "apply_chat_template", lambda *given, **named: ask(*given, **named) + "<think>")
    assert run(StubEngine(key_of)).metrics[0].value == 0
    assert run(StubEngine(lambda prompt: f"1</think>{key_of(prompt)}")).metrics[0].value == 100


def broken(engine: StubEngine, requests: Sequence[Request]) -> Iterator[Completion]:
    """Answers of all kinds that are none: cut while thinking, cut in a loop, not finite, silent."""
    kinds = [("<think>12345", "length", True), ("7 " * 100, "length", True), ("1", "stop", False), ("", "stop", True)]
    for at, request in enumerate(requests):
        text, finish, finite = kinds[at % 4]
        yield Completion(request.id, (1, 2), text, finish, finite)  # type: ignore[arg-type]


def test_what_a_score_of_zero_is_made_of_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubEngine, "generate", broken)
    result = run(StubEngine())
    assert {m.name: m.value for m in result.metrics} == {
        "found": 0, "no_answer": 50, "unscored": 0, "truncated": 50, "loops": 25, "non_finite": 25, "answer_tokens": 2,
    }  # fmt: skip
    rows = result.tables["scores"]
    assert [row["item"] for row in rows[:3]] == ["700-0-0", "700-0-1", "700-50-0"]
    assert {(row["repeat"], row["value"]) for row in rows} == {(0, 0)}
    assert [(row["finish"], row["loop"], row["finite"], row["tokens"]) for row in rows[:4]] == [
        ("length", False, True, 2), ("length", True, True, 2), ("stop", False, False, 2), ("stop", False, True, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("questions", [1, 5, 10, 13, 17])
@pytest.mark.parametrize("answer", [key_of, lambda prompt: "none"])
def test_an_interval_holds_its_value(questions: int, answer: Callable[[str], str]) -> None:
    """Of these numbers of equal answers, rounding puts an end of Wilson's interval off 0 or 1."""
    result = run(StubEngine(answer), task=Passkey(lengths=(700,), depths=(0,), repeats=questions))
    (row,), found = result.tables["passkey"], result.metrics[0]
    assert found.value in (0, 100)
    for low, value, high in ((row["low"], row["score"], row["high"]), (found.low, found.value, found.high)):
        assert low <= value <= high


@pytest.mark.parametrize(("answer", "value"), [("AB, CD", 1.0), ("ab CD", 0.5), ("ABCD", 0.0), ("", 0.0)])
def test_names_are_found_as_whole_words(answer: str, value: float) -> None:
    assert all_found(answer, ("AB", "CD")).value == value


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (Passkey(lengths=(1024, 8192)), r"task\.lengths=8192 does not fit the context of tiny, 4096 tokens"),
        (Passkey(lengths=()), r"task\.lengths"),
        (Passkey(lengths=(20,)), r"task\.lengths"),
        (Passkey(depths=(0, 101)), r"task\.depths"),
        (Passkey(repeats=0), r"task\.repeats"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_weights_load(task: Passkey, named: str) -> None:
    with pytest.raises(UserError, match=named):
        task.check(SimpleNamespace(name="tiny", max_length=4096))  # type: ignore[arg-type]

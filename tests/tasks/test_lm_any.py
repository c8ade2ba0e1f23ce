"""Tasks of lm-eval itself, here three tiny ones defined in a folder: answers and choices through the bridge."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.stub import DictSink, StubEngine
from sawbench.core.engine import LogLikelihood
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import Metric, TaskResult
from sawbench.stats import proportion_interval
from sawbench.tasks.base import TaskContext
from sawbench.tasks.lm_tasks import LmEval, metric
from sawbench.tasks.protocol import Protocol

PLAN: Any = SimpleNamespace(name="stub", max_length=100_000)
COMMON = "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\nnum_fewshot: 0\n"
DEFINITIONS = {
    "made_echo": "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
    'generation_kwargs: {until: ["\\n"]}\n'
    "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n",
    "made_choice": "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: ['no', 'indeed']\n"
    "doc_to_target: 0\nmetric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n",
    "made_unsafe": "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
    "unsafe_code: true\ngeneration_kwargs: {until: []}\n"
    "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps({"question": f"q{n}", "answer": f"a{n}"}) for n in range(3)))
    for name, body in DEFINITIONS.items():
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\n{COMMON.format(data=data)}{body}")
    return tmp_path


def run(task: LmEval, engine: StubEngine, sink: DictSink | None = None) -> TaskResult:
    given = {"engine": engine, "reference": lambda: engine, "sink": sink or DictSink(), "progress": silent, "seed": 0}
    return task.run(TaskContext(**{name: given.get(name) for name in TaskContext.__dataclass_fields__}))  # type: ignore


def test_answers_and_choices(folder: Path) -> None:
    echo = LmEval(name="made_echo", protocol=Protocol(chat=False), include_path=str(folder))
    engine, sink = StubEngine(lambda prompt: f"a{prompt[1]}\nand more"), DictSink()
    result = run(echo, engine, sink)
    found, *beside = result.metrics
    assert [m.name for m in beside] == ["no_answer", "truncated", "loops", "answer_tokens", "non_finite"]
    assert (found.name, found.value, found.n) == ("exact_match,none", 100, 3)
    assert found.low is not None
    assert found.low < 100
    assert {request.sampling.stop for request in engine.asked} == {("\n",)}
    assert set(sink.done) == {f"made_echo/{n}/0" for n in range(3)}

    choice = LmEval(name="made_choice", protocol=Protocol(chat=False), include_path=str(folder))
    result = run(choice, StubEngine())
    assert [(m.name, m.value) for m in result.metrics] == [("acc,none", 100), ("non_finite", 0)]
    right = {"repeat": 0, "value": 1.0, "reason": "", "metric": "acc,none"}
    assert result.tables["scores"] == [{"item": n, **right} for n in range(3)]


def test_an_item_without_an_answer_is_wrong_whatever_its_target(folder: Path) -> None:
    """The first thought names the target and never ends; the second answer is empty, as its target is."""
    (folder / "rows.jsonl").write_text('{"question": "q0", "answer": "<think>a"}\n{"question": "q1", "answer": ""}\n'
                                       '{"question": "q2", "answer": "a"}\n')  # fmt: skip
    task = LmEval(name="made_echo", protocol=Protocol(chat=False), include_path=str(folder))
    answers = {"q0": "<think>a", "q1": "<think>so</think>", "q2": "<think>b</think>\na"}
    result = run(task, StubEngine(answers.__getitem__))
    found = {m.name: m.value for m in result.metrics}
    assert found["exact_match,none"] == pytest.approx(100 / 3)
    assert found["no_answer"] == pytest.approx(200 / 3)
    rows = [(row["value"], row["reason"]) for row in result.tables["scores"]]
    assert rows == [(0, "no answer"), (0, "no answer"), (1, "")]


def test_the_worst_of_what_should_be_low_is_one(folder: Path) -> None:
    """A share of mistakes: an answer that is none makes one."""
    body = DEFINITIONS["made_echo"].replace("higher_is_better: true", "higher_is_better: false")
    (folder / "made_errors.yaml").write_text(f"task: made_errors\n{COMMON.format(data=folder / 'rows.jsonl')}{body}")
    task = LmEval(name="made_errors", protocol=Protocol(chat=False), include_path=str(folder))
    assert run(task, StubEngine(lambda prompt: "none" if prompt == "q0" else "")).metrics[0].value == pytest.approx(
        200 / 3
    )


@pytest.mark.parametrize("total", [float("nan"), float("inf"), float("-inf")])
def test_a_log_likelihood_that_is_no_number_makes_no_item_right(
    folder: Path, total: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first choice is the right one, and argmax over NaN takes the first."""

    def scores(engine: StubEngine, pairs: Any) -> list[LogLikelihood]:
        return [LogLikelihood(total if context[1] == ord("1") else -1.0, True, 1) for context, _ in pairs]

    monkeypatch.setattr(StubEngine, "loglikelihood", scores)
    result = run(LmEval(name="made_choice", protocol=Protocol(chat=False), include_path=str(folder)), StubEngine())
    found = {m.name: m for m in result.metrics}
    assert found["acc,none"].value == pytest.approx(200 / 3)
    assert (found["non_finite"].value, found["non_finite"].n) == (pytest.approx(100 / 3), 3)
    rows = [(row["value"], row["reason"]) for row in result.tables["scores"]]
    assert rows == [(1, ""), (0, "log-likelihood not finite"), (1, "")]


def test_repeats_are_answers_of_their_own_averaged_by_item(folder: Path) -> None:
    """Right at every other asking: half of the answers, and no more known of it than three items tell."""
    protocol = Protocol(chat=False, temperature=0.6, repeats=4)
    task = LmEval(name="made_echo", protocol=protocol, include_path=str(folder))
    task.check(PLAN)
    turns: dict[str, int] = {}

    def alternating(prompt: str) -> str:
        turns[prompt] = turns.get(prompt, -1) + 1
        return f"a{prompt[1]}" if turns[prompt] % 2 else "no"

    engine, sink = StubEngine(alternating), DictSink()
    result = run(task, engine, sink)
    assert set(sink.done) == {f"made_echo/{item}/{repeat}" for item in range(3) for repeat in range(4)}
    assert len({request.sampling.seed for request in engine.asked}) == 12
    found = result.metrics[0]
    assert (found.value, found.n) == (50, 12)
    expected = proportion_interval([0, 1, 0, 1] * 3, [n for n in range(3) for _ in range(4)])
    assert (found.low, found.high) == (pytest.approx(100 * expected.low), pytest.approx(100 * expected.high))
    rows = {(row["item"], row["repeat"]): row["value"] for row in result.tables["scores"]}
    assert rows == {(item, repeat): repeat % 2 for item in range(3) for repeat in range(4)}


@pytest.mark.parametrize(
    ("name", "protocol", "said"),
    [
        ("made_echo", Protocol(repeats=5), r"protocol\.repeats=5 of a greedy answer are all alike"),
        (
            "made_choice",
            Protocol(repeats=5, temperature=0.6),
            r"protocol\.repeats=5: task\.name=made_choice asks for log",
        ),
    ],
)
def test_repeats_that_would_be_alike_are_refused(folder: Path, name: str, protocol: Protocol, said: str) -> None:
    with pytest.raises(UserError, match=said):
        LmEval(name=name, protocol=protocol, include_path=str(folder)).check(PLAN)


def test_every_task_of_a_group_leaves_its_items(folder: Path) -> None:
    """Under the names that its metrics have, so that each can be compared item by item."""
    (folder / "made_both.yaml").write_text("group: made_both\ntask: [made_echo, made_choice]\n")
    both = LmEval(name="made_both", protocol=Protocol(chat=False), include_path=str(folder))
    result = run(both, StubEngine(lambda prompt: "a0"))
    rows = [(row["metric"], row["item"], row["value"]) for row in result.tables["scores"]]
    assert sorted(rows) == [
        *(("made_choice/acc,none", n, 1.0) for n in range(3)),
        *(("made_echo/exact_match,none", n, float(n == 0)) for n in range(3)),
    ]
    assert {metric for metric, _, _ in rows} <= {metric.name for metric in result.metrics}


@pytest.mark.parametrize(("asked", "said"), [(None, "as the task has it"), (2, 2)])
def test_what_the_numbers_hold_for_is_on_record(folder: Path, asked: int | None, said: object) -> None:
    task = LmEval(name="made_choice", protocol=Protocol(chat=False), num_fewshot=asked, include_path=str(folder))
    (conditions,) = run(task, StubEngine()).tables["conditions"]
    assert conditions["num_fewshot"] == said
    assert (conditions["protocol.chat"], conditions["max_new_tokens"]) == (False, 256)


def test_the_first_items_alone(folder: Path) -> None:
    task = LmEval(name="made_echo", protocol=Protocol(chat=False, items=2), include_path=str(folder))
    assert run(task, StubEngine(lambda p: "")).metrics[0].n == 2


def test_code_is_not_run_outside_the_sandbox(folder: Path) -> None:
    with pytest.raises(UserError, match="made_unsafe runs the model's code without a sandbox"):
        LmEval(name="made_unsafe", protocol=Protocol(), include_path=str(folder)).check(PLAN)


def test_an_unknown_name_is_refused_with_its_neighbours(folder: Path) -> None:
    with pytest.raises(UserError, match=r"task\.name=made_ecko is no task of lm-eval; close to it: .*made_echo"):
        LmEval(name="made_ecko", protocol=Protocol(), include_path=str(folder)).check(PLAN)


def test_data_that_do_not_load_are_one_line(folder: Path) -> None:
    (folder / "rows.jsonl").unlink()
    with pytest.raises(UserError, match=r"task\.name=made_echo: lm-eval cannot load it") as caught:
        LmEval(name="made_echo", protocol=Protocol(), include_path=str(folder)).check(PLAN)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "values", "interval"),
    [
        (0.5, [0, 1], True),
        (1.0, [1, 1], True),
        (12.3, [None], False),
        (0.7, [0, 1], False),
        (0.5, [], False),
        (0.5, [0.5, None], False),
    ],
)
def test_an_interval_is_given_where_the_value_is_a_mean_of_items(
    value: float, values: list[Any], interval: bool
) -> None:
    found = metric("acc,none", value, [{"item": at, "value": each} for at, each in enumerate(values)])
    assert isinstance(found, Metric)
    assert (found.value, found.unit) == ((100 * value, "%") if interval else (value, ""))
    assert (found.low is not None and found.low < found.high) is interval  # type: ignore[operator]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_none(value: float) -> None:
    assert metric("perplexity,none", value, [{"item": 0, "value": None}]).value is None

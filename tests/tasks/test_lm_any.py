"""Tasks of lm-eval itself, here three tiny ones defined in a folder: answers and choices through the bridge."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.stub import DictSink, StubEngine
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import Metric, TaskResult
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
    assert [m.name for m in beside] == ["truncated", "loops", "non_finite", "answer_tokens"]
    assert (found.name, found.value, found.n) == ("exact_match,none", 100, 3)
    assert found.low is not None
    assert found.low < 100
    assert {request.sampling.stop for request in engine.asked} == {("\n",)}
    assert set(sink.done) == {f"made_echo/{n}/0" for n in range(3)}

    choice = LmEval(name="made_choice", protocol=Protocol(chat=False), include_path=str(folder))
    result = run(choice, StubEngine())
    assert [(m.name, m.value) for m in result.metrics] == [("acc,none", 100)]
    assert result.tables["scores"] == [{"item": n, "repeat": 0, "value": 1.0} for n in range(3)]


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
    [(0.5, [0, 1], True), (1.0, [1, 1], True), (12.3, [(1.0, 2)], False), (0.7, [0, 1], False), (0.5, [], False)],
)
def test_an_interval_is_given_where_the_value_is_a_mean_of_items(
    value: float, values: list[Any], interval: bool
) -> None:
    found = metric("acc,none", value, values)
    assert isinstance(found, Metric)
    assert (found.value, found.unit) == ((100 * value, "%") if interval else (value, ""))
    assert (found.low is not None and found.low < found.high) is interval  # type: ignore[operator]

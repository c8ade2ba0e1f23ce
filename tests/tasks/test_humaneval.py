"""HumanEval: three problems of the same columns, one with a helper in its prompt, answered right, wrong and oddly."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.stub import DictSink, StubEngine
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import Metric, TaskResult
from sawbench.scoring.sandbox import refusal
from sawbench.tasks.base import TaskContext
from sawbench.tasks.humaneval import HumanEval, process_results
from sawbench.tasks.protocol import Protocol

needs_namespaces = pytest.mark.skipif(refusal("strict") is not None, reason="this machine forbids namespaces")

PROBLEMS = [
    {
        "task_id": "Made/0",
        "prompt": "from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    \"\"\"Sum.\"\"\"\n",
        "entry_point": "total",
        "canonical_solution": "    return sum(numbers)\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
    },
    {
        "task_id": "Made/1",
        "prompt": "import math\n\ndef area(r):\n    return math.pi * r**2\n\n\ndef ring(a, b):\n    '''Ring.'''\n",
        "entry_point": "ring",
        "canonical_solution": "    return area(a) - area(b)\n",
        "test": "def check(candidate):\n    assert round(candidate(2, 1), 3) == 9.425\n",
    },
    {
        "task_id": "Made/2",
        "prompt": "def upper(text):\n    \"\"\"In capitals.\"\"\"\n",
        "entry_point": "upper",
        "canonical_solution": "    return text.upper()\n",
        "test": "def check(candidate):\n    assert candidate('a') == 'A'\n",
    },
]  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> HumanEval:
    data = tmp_path / "HumanEval.jsonl"
    data.write_text("\n".join(map(json.dumps, PROBLEMS)))
    return HumanEval(name="humaneval", protocol=Protocol(), data=str(data), allow_code_execution=True)


def problem(prompt: str) -> dict[str, str]:
    return next(p for p in PROBLEMS if f"def {p['entry_point']}(" in prompt)


def right(prompt: str) -> str:
    """The function asked for alone: imports and helpers are the prompt's."""
    found = problem(prompt)
    function = found["prompt"][found["prompt"].index(f"def {found['entry_point']}") :]
    return f"Here it is.\n\n```python\n{function}{found['canonical_solution']}```\n\nIt works."


def run(task: HumanEval, answer: Callable[[str], str], sink: DictSink | None = None) -> TaskResult:
    return task.run(context(StubEngine(answer), sink or DictSink()))


def context(engine: StubEngine, sink: Any) -> TaskContext:
    given = {"engine": engine, "reference": lambda: engine, "sink": sink, "progress": silent, "seed": 0}
    names = TaskContext.__dataclass_fields__
    return TaskContext(**{name: given.get(name) for name in names})  # type: ignore[arg-type]


def metric(result: TaskResult, name: str) -> Metric:
    return next(m for m in result.metrics if m.name == name)


@needs_namespaces
class TestScores:
    def test_always_right_is_100_with_an_interval(self, task: HumanEval) -> None:
        found = metric(run(task, right), "pass@1")
        assert (found.value, found.n, found.unit) == (100.0, 3, "%")
        assert found.low is not None
        assert found.low < 100 == found.high

    def test_always_wrong_is_0_with_an_interval(self, task: HumanEval) -> None:
        found = metric(run(task, lambda p: "```python\ndef total(n): return 7\n```"), "pass@1")
        assert found.value == 0
        assert found.high is not None
        assert found.low == 0 < found.high

    def test_a_body_alone_goes_on_from_the_prompt(self, task: HumanEval) -> None:
        result = run(task, lambda p: f"```\n{problem(p)['canonical_solution']}```")
        assert metric(result, "pass@1").value == 100

    def test_thinking_is_not_the_answer(self, task: HumanEval) -> None:
        wrong_thought = "<think>```python\ndef total(n): return 7\n```</think>"
        assert metric(run(task, lambda p: wrong_thought + right(p)), "pass@1").value == 100
        unclosed = run(task, lambda p: "<think>" + right(p))
        assert metric(unclosed, "pass@1").value == 0
        assert metric(unclosed, "no_answer").value == 100
        assert {row["reason"] for row in unclosed.tables["scores"]} == {"the thought was not closed"}

    def test_an_early_exit_does_not_pass(self, task: HumanEval) -> None:
        result = run(
            task, lambda p: f"```python\nimport os; os._exit(0)\ndef {problem(p)['entry_point']}(*a): ...\n```"
        )
        assert metric(result, "pass@1").value == 0
        assert {row["reason"] for row in result.tables["scores"]} == {"the program left before its tests were through"}

    def test_runaway_text_shows_beside_the_score(self, task: HumanEval) -> None:
        result = run(task, lambda p: "! " * 5000)
        shown = {name: metric(result, name).value for name in ("pass@1", "truncated", "no_answer", "loops")}
        assert shown == {"pass@1": 0, "truncated": 100, "no_answer": 100, "loops": 100}

    def test_samples_give_an_unbiased_pass_at_k(self, task: HumanEval) -> None:
        """One of five samples of each problem is right: pass@1 is a fifth, and pass@5 is one."""
        many = replace(task, protocol=Protocol(temperature=0.6, repeats=5))
        turn = iter(range(100))
        result = run(many, lambda p: right(p) if next(turn) % 5 == 0 else "no code")
        assert metric(result, "pass@1").value == pytest.approx(20)
        assert metric(result, "pass@5").value == 100
        assert metric(result, "pass@1").n == 15

    def test_a_killed_run_keeps_its_samples_and_makes_the_rest(self, task: HumanEval) -> None:
        sink, undisturbed = DictSink(), DictSink()
        expected = run(task, right, undisturbed)
        sink.add("humaneval/Made/1/0", undisturbed.done["humaneval/Made/1/0"])
        engine = StubEngine(right)
        assert task.run(context(engine, sink)) == expected
        assert {request.id for request in engine.asked} == {"humaneval/Made/0/0", "humaneval/Made/2/0"}

    def test_scoring_needs_the_samples_alone(self, task: HumanEval) -> None:
        sink = DictSink()
        expected = run(task, right, sink)
        offline = replace(task, data="gone.jsonl")
        assert offline.result(list(json.loads(json.dumps(list(sink.done.values()))))) == expected

    def test_code_can_be_run_later(self, task: HumanEval) -> None:
        """Nothing runs, nothing is counted as wrong, and the same samples are judged elsewhere."""
        sink, later = DictSink(), replace(task, sandbox="later", allow_code_execution=False)
        result = run(later, right, sink)
        assert metric(result, "pass@1").value is None
        assert metric(result, "unscored").value == 100
        assert metric(task.result(list(sink.done.values())), "pass@1").value == 100

    def test_the_definition_serves_lm_eval_itself(self, task: HumanEval) -> None:
        definition = task.definition(seed=0)
        document = definition.eval_docs[0]
        assert process_results(document, [right(definition.doc_to_text(document))]) == {"pass@1": 1.0}
        assert definition.UNSAFE_CODE


AFTER = (
    "", "\n\ndef other(", "\nasync def other(", "\nclass Other", "\n@cache\ndef other(",
    "\n\nif __name__ == '__main__'",
    "\nprint(", "\nprint (1",
    "```\n\nThat is all.", "~~~\nThat is all.", "```\n\n```python\ndef total(n): return 7\n```",
)  # fmt: skip
"""What base models write when the function is done."""


@needs_namespaces
class TestWithoutChat:
    @pytest.fixture
    def base(self, task: HumanEval) -> HumanEval:
        return replace(task, protocol=Protocol(chat=False))

    def test_the_prompt_is_the_function_itself(self, base: HumanEval) -> None:
        engine = StubEngine(right)
        base.run(context(engine, DictSink()))
        asked = {engine.tokenizer.decode(request.prompt) for request in engine.asked}
        assert asked == {problem["prompt"] for problem in PROBLEMS}

    @pytest.mark.parametrize("after", AFTER)
    @pytest.mark.parametrize("before", ["", "\n", "    # first\n\n"])
    def test_a_continuation_ends_with_the_function(self, base: HumanEval, before: str, after: str) -> None:
        result = run(base, lambda p: before + problem(p)["canonical_solution"] + after)
        assert metric(result, "pass@1").value == 100

    def test_the_function_written_anew_counts(self, base: HumanEval) -> None:
        assert metric(run(base, right), "pass@1").value == 100
        assert metric(run(base, lambda p: right(p).partition(".")[2].lstrip()), "pass@1").value == 100

    @pytest.mark.parametrize("answer", ["    return 7\n", "", "def", "    return (\n\ndef other(): ...", "```\n```"])
    def test_wrong_ones_are_0(self, base: HumanEval, answer: str) -> None:
        assert metric(run(base, lambda p: answer), "pass@1").value == 0

    def test_the_definition_serves_lm_eval_itself(self, base: HumanEval) -> None:
        definition = base.definition(seed=0)
        document = definition.eval_docs[0]
        answer = problem(definition.doc_to_text(document))["canonical_solution"] + "\nprint("
        assert process_results(document, [answer]) == {"pass@1": 1.0}


class TestRefusals:
    plan = SimpleNamespace(name="stub", max_length=4096)

    def test_code_execution_is_asked_for_first(self, task: HumanEval) -> None:
        with pytest.raises(UserError, match=r"task\.allow_code_execution=true"):
            replace(task, allow_code_execution=False).check(self.plan)  # type: ignore[arg-type]

    def test_scoring_again_is_no_way_round_the_permission(self, task: HumanEval) -> None:
        sample = {"task": "humaneval", "item": "a", "repeat": 0, "text": ""}
        with pytest.raises(UserError, match=r"task\.allow_code_execution=true"):
            replace(task, allow_code_execution=False).score([sample])

    def test_an_unknown_sandbox(self, task: HumanEval) -> None:
        with pytest.raises(UserError, match=r"task\.sandbox=none is not one of: strict, weak, later"):
            replace(task, sandbox="none")  # type: ignore[arg-type]

    @needs_namespaces
    def test_a_budget_beyond_the_context(self, task: HumanEval) -> None:
        with pytest.raises(UserError, match=r"protocol\.max_new_tokens=32768 does not fit the context of stub: 4096"):
            replace(task, protocol=Protocol(max_new_tokens=32768)).check(self.plan)  # type: ignore[arg-type]

    @needs_namespaces
    def test_greedy_repeats(self, task: HumanEval) -> None:
        with pytest.raises(UserError, match=r"protocol\.repeats=5 of a greedy answer are all alike"):
            replace(task, protocol=Protocol(repeats=5)).check(self.plan)  # type: ignore[arg-type]

    @needs_namespaces
    @pytest.mark.parametrize(
        "content", [None, "", '{"question": 1}', "not json", json.dumps(PROBLEMS[0]) + "\n" + json.dumps(PROBLEMS[0])]
    )
    def test_data_that_is_none(self, task: HumanEval, tmp_path: Path, content: str | None) -> None:
        path = tmp_path / "other.jsonl"
        if content is not None:
            path.write_text(content)
        with pytest.raises(UserError, match=r"task\.data") as caught:
            replace(task, data=str(path)).check(self.plan)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)

    @needs_namespaces
    def test_what_passes(self, task: HumanEval) -> None:
        task.check(self.plan)  # type: ignore[arg-type]

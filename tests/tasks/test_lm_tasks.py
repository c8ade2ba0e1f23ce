"""The paper's tasks and their neighbours, on rows made up here: always right is 100 %, always wrong 0 %."""

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.stub import DictSink, StubEngine, StubTokenizer
from sawbench.config import compose
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import Metric, TaskResult
from sawbench.scoring.sandbox import refusal
from sawbench.tasks.base import TaskContext
from sawbench.tasks.benchmark import Benchmark
from sawbench.tasks.choice import Choice, Gpqa, permutation
from sawbench.tasks.livecodebench import LiveCodeBench, hub_files
from sawbench.tasks.math import MathBenchmark
from sawbench.tasks.protocol import Protocol
from sawbench.verbs.run import parts, sweep

needs_namespaces = pytest.mark.skipif(refusal("strict") is not None, reason="this machine forbids namespaces")
PLAN: Any = SimpleNamespace(name="stub", max_length=100_000)


def packed(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def problem(
    name: str, day: str, public: dict[str, str], private: dict[str, str], starter: str = "", function: str = ""
) -> dict[str, str]:
    return {
        "question_id": name,
        "question_content": f"Problem {name}.",
        "contest_date": f"{day}T00:00:00",
        "starter_code": starter,
        "public_test_cases": json.dumps([public]),
        "private_test_cases": packed([private]),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


ROWS: dict[str, list[dict[str, Any]]] = {
    "gpqa_diamond": [
        {"Record ID": f"r{n}", "Question": f"Question {n}?", "Correct Answer": f"right {n}",
         **{f"Incorrect Answer {k}": f"wrong {n}.{k}" for k in (1, 2, 3)}} for n in range(3)
    ],
    "mmlu_pro": [
        {"question_id": n, "question": f"Question {n}?", "options": ["no", "never", "yes", "N/A"][: 4 - n],
         "answer": "C", "category": "law"} for n in range(2)
    ],
    "math500": [
        {"problem": "Half?", "answer": r"\frac{1}{2}", "unique_id": "test/a.json"},
        {"problem": "Roots?", "answer": r"1 \pm \sqrt{19}", "unique_id": "test/b.json"},
    ],
    "aime24": [{"id": 60, "problem": "Walk?", "answer": "204"}],
    "aime25": [{"id": "0", "question": "Bases?", "answer": 70.0}],
    "gsm8k": [{"question": "Ducks?", "answer": "16 - 7 = <<16-7=9>>9\n#### 1,018"}],
    "livecodebench": [
        problem("sum", "2025-02-01", {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
                {"input": "5 5\n", "output": "10.0", "testtype": "stdin"}),
        problem("pair", "2025-01-05", {"input": "[1,2]\n3", "output": "[1, 3]", "testtype": "functional"},
                {"input": "[]\n1", "output": "[0, 1]", "testtype": "functional"}, "class Solution: ...", "pair"),
        problem("old", "2025-01-04", {"input": "", "output": "", "testtype": "stdin"},
                {"input": "", "output": "", "testtype": "stdin"}),
    ],
}  # fmt: skip

SOLUTIONS = {
    "Problem sum.": "```python\na, b = map(int, input().split())\nprint(a + b)\n```",
    "Problem pair.": "```python\nclass Solution:\n    def pair(self, a: List[int], b: int):\n"
    "        return (len(a) - (len(a) > 1), b)\n```",
}
ANSWERS = {
    "Half?": r"\boxed{0.5}",
    "Roots?": r"\boxed{1-\sqrt{19}, 1+\sqrt{19}}",
    "Walk?": r"\boxed{204}",
    "Bases?": r"Thus \boxed{70}.",
    "Ducks?": r"So it is 1018",
    **SOLUTIONS,
}


def right(prompt: str) -> str:
    """The answer that a prompt's rows say is right; choices are looked for among the options as they stand."""
    for question, answer in ANSWERS.items():
        if question in prompt:
            return answer
    line = next(line for line in prompt.splitlines() if ") right" in line or ") yes" in line)
    return f"Thinking.\n\n**Answer: ({line[0]})**"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Benchmark]:
    def made(name: str, **options: Any) -> Benchmark:
        kinds = {"gpqa_diamond": Gpqa, "mmlu_pro": Choice, "livecodebench": LiveCodeBench}
        data = tmp_path / f"{name}.jsonl"
        data.write_text("\n".join(map(json.dumps, ROWS[name])))
        if name == "livecodebench":
            options = {"allow_code_execution": True, **options}
        options = {"protocol": Protocol(), "number": True, **options}
        kind = kinds.get(name, MathBenchmark)
        if kind is not MathBenchmark:
            del options["number"]
        return kind(name=name, data=str(data), **options)  # type: ignore[return-value]

    return made


def run(task: Any, answer: Callable[[str], str] = right, sink: DictSink | None = None, seed: int = 0) -> TaskResult:
    engine, sink = StubEngine(answer), sink or DictSink()
    given = {"engine": engine, "reference": lambda: engine, "sink": sink, "progress": silent, "seed": seed}
    return task.run(TaskContext(**{name: given.get(name) for name in TaskContext.__dataclass_fields__}))  # type: ignore


def metric(result: TaskResult, name: str) -> Metric:
    return next(m for m in result.metrics if m.name == name)


@pytest.mark.parametrize("name", [n if n != "livecodebench" else pytest.param(n, marks=needs_namespaces) for n in ROWS])
class TestEveryTask:
    def test_always_right_is_100(self, make: Callable[..., Benchmark], name: str) -> None:
        task = make(name)
        task.check(PLAN)
        found = run(task).metrics[0]
        assert (found.name, found.value) == (task.metric, 100)
        assert found.low is not None
        assert found.low < 100 == found.high

    def test_always_wrong_is_0(self, make: Callable[..., Benchmark], name: str) -> None:
        result = run(make(name), lambda prompt: "Answer: J \\boxed{-1} ```python\nprint('no')\n```")
        assert result.metrics[0].value == 0
        assert result.metrics[0].high is not None
        assert result.metrics[0].low == 0 < result.metrics[0].high
        assert metric(result, "unscored").value == 0

    def test_an_unclosed_thought_answers_nothing(self, make: Callable[..., Benchmark], name: str) -> None:
        result = run(make(name), lambda prompt: "<think>" + right(prompt))
        assert result.metrics[0].value == 0
        assert metric(result, "no_answer").value == 100

    def test_scoring_again_needs_the_samples_alone(self, make: Callable[..., Benchmark], name: str) -> None:
        sink, task = DictSink(), make(name)
        expected = run(task, sink=sink)
        offline = task if name == "livecodebench" else replace(task, data="gone")
        assert offline.result(json.loads(json.dumps(list(sink.done.values())))) == expected


class TestGpqa:
    def test_an_order_follows_from_question_repeat_and_seed_alone(self) -> None:
        assert permutation("r1", 2, 3) == permutation("r1", 2, 3)
        orders = {tuple(permutation(f"r{n}", 0, 0)) for n in range(400)}
        assert len(orders) == 24

    def test_first_places_are_even(self) -> None:
        """Chi-squared of 4,000 draws over four places stays under its 99.9 % point."""
        first = [permutation(f"r{n}", 0, 7)[0] for n in range(4000)]
        assert sum((first.count(place) - 1000) ** 2 / 1000 for place in range(4)) < 16.3

    def test_repeats_and_seeds_permute_again_and_the_order_is_stored(self, make: Callable[..., Benchmark]) -> None:
        sink = DictSink()
        run(make("gpqa_diamond", protocol=Protocol(temperature=0.6, repeats=5)), sink=sink)
        stored = {key: sample["document"]["order"] for key, sample in sink.done.items()}
        assert stored == {key: permutation(key.split("/")[1], int(key.split("/")[2]), 0) for key in stored}
        assert len({tuple(order) for order in stored.values()}) > 4

    def test_both_rules_are_reported(self, make: Callable[..., Benchmark]) -> None:
        """Brackets in bold: the careful rule sees the letter, the client's does not."""
        result = run(make("gpqa_diamond"))
        assert metric(result, "accuracy").value == 100
        assert metric(result, "accuracy_paper_rule").value == 0

    def test_greedy_repeats_are_fine_where_options_move(self, make: Callable[..., Benchmark]) -> None:
        make("gpqa_diamond", protocol=Protocol(repeats=3)).check(PLAN)


@needs_namespaces
class TestLiveCodeBench:
    def test_the_window_is_inclusive(self, make: Callable[..., Benchmark]) -> None:
        assert [d["item"] for d in make("livecodebench").definition(0).eval_docs] == ["sum", "pair"]
        assert len(make("livecodebench", start="2025-01-04").definition(0).eval_docs) == 3

    def test_an_earlier_start_reads_the_older_files_too(self) -> None:
        """None of the hub's files could answer for a window before its first contest, and none would be missed."""
        assert hub_files(date.fromisoformat(LiveCodeBench.start)) == ("test5.jsonl", "test6.jsonl")
        assert hub_files(date(2025, 1, 4))[::5] == ("test.jsonl", "test6.jsonl")
        assert len(hub_files(date(2023, 5, 1))) == 6

    def test_a_program_that_passes_the_public_tests_alone_fails(self, make: Callable[..., Benchmark]) -> None:
        result = run(
            make("livecodebench"), lambda p: "```python\nprint(3)\n```" if "sum" in p else SOLUTIONS["Problem pair."]
        )
        assert metric(result, "pass@1").value == 50
        reasons = {row["item"]: row["reason"] for row in result.tables["scores"]}
        assert reasons["sum"] == "test 2 of 2: another output than expected"

    def test_a_bad_date_is_refused(self, make: Callable[..., Benchmark]) -> None:
        with pytest.raises(UserError, match=r"task\.start=spring is not a date"):
            make("livecodebench", start="spring").check(PLAN)


class TestPaper:
    """``task=paper``: the five, each a cell of its own."""

    def test_its_parts_are_the_cells_that_each_would_give_alone(self) -> None:
        common = ["model=tiny", "protocol=paper"]
        suite = compose("run", [*common, "task=paper", "task.allow_code_execution=true", "task.sandbox=later"])
        found = {part.task.name: part.task for part in parts(suite)}
        assert list(found) == ["gpqa_diamond", "humaneval", "livecodebench", "aime25", "math500"]
        code = ["task.allow_code_execution=true", "task.sandbox=later"]
        for name, task in found.items():
            options = code if "allow_code_execution" in task else []
            assert task == compose("run", [*common, f"task={name}", *options]).task

    def test_one_that_is_refused_is_refused_before_any_runs(self, tmp_path: Path) -> None:
        suite = compose("run", ["model=tiny", "task=paper", f"results={tmp_path}"])
        with pytest.raises(UserError):
            sweep([suite])
        assert not list(tmp_path.iterdir())

    def test_another_task_is_one_cell(self) -> None:
        config = compose("run", ["model=tiny", "task=math500"])
        assert parts(config) == [config]


@pytest.mark.parametrize(
    ("template", "asked", "told"),
    [("{{ enable_thinking }}", True, True), ("{{ messages }}", True, None), ("{{ messages }}", None, None)],
)
def test_conditions_say_whether_the_template_was_told_to_think(
    make: Callable[..., Benchmark],
    template: str,
    asked: bool | None,
    told: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StubTokenizer.__init__, "__defaults__", (template,))
    (conditions,) = run(make("math500", protocol=Protocol(thinking=asked))).tables["conditions"]
    assert conditions["protocol.thinking"] == told


def test_repeats_of_an_item_widen_nothing_they_do_not_know(make: Callable[..., Benchmark]) -> None:
    """Five equal answers to each of two questions tell no more than one answer to each."""
    once = run(make("math500")).metrics[0]
    often = run(make("math500", protocol=Protocol(temperature=0.6, repeats=5))).metrics[0]
    assert (often.low, often.high) == (once.low, once.high)
    assert often.n == 10


def test_the_papers_protocol_needs_its_context(make: Callable[..., Benchmark]) -> None:
    paper = Protocol("paper", thinking=True, temperature=0.6, top_p=0.95, max_new_tokens=32768, repeats=5)
    small: Any = SimpleNamespace(name="smollm2-135m", max_length=8192)
    with pytest.raises(
        UserError, match=r"protocol\.max_new_tokens=32768 does not fit the context of smollm2-135m: 8192"
    ):
        make("math500", protocol=paper).check(small)

"""HumanEval (Chen et al. 2021): 164 Python functions to write, judged by their tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sawbench.core.engine import Score
from sawbench.core.progress import Progress, silent
from sawbench.scoring.code import Attempt, function_in, passes
from sawbench.scoring.sandbox import Sandbox
from sawbench.tasks.benchmark import Sample, thought_open
from sawbench.tasks.code import CodeBenchmark
from sawbench.tasks.documents import Row, as_split, repeated, require, rows

HUB = "openai/openai_humaneval"
FIELDS = ("task_id", "prompt", "entry_point", "test")


@dataclass(frozen=True, kw_only=True)
class HumanEval(CodeBenchmark):
    """Options as in CodeBenchmark. Without ``protocol.chat`` a model is given the function's beginning alone. Nothing
    stops it while it writes, since it may write the function anew; what follows the function is cut for the verdict."""

    def extra(self) -> Mapping[str, Any]:
        return {"chat": self.protocol.chat}

    def judge(self, attempts: Sequence[Attempt], samples: Sequence[Sample], progress: Progress) -> list[Score]:
        return passes(self.jail, attempts, [test_of(sample["document"]) for sample in samples], progress)

    def attempt(self, sample: Sample) -> Attempt:
        document = sample["document"]
        return function_in(
            sample["text"], document["prompt"], document["entry_point"], thought_open(sample), self.protocol.chat
        )


def documents(
    data: str | None = None, repeats: int = 1, items: int | None = None, chat: bool = True, **_: Any
) -> dict[str, Any]:
    """The lm-eval data set: one document for each (item, repeat), which says how it is put."""
    found = (require(row, *FIELDS) for row in rows(data, HUB))
    return as_split(repeated((_document(row, chat) for row in found), repeats, items))


def _document(row: Row, chat: bool) -> Row:
    return {"item": row["task_id"], **{name: row[name] for name in FIELDS[1:]}, "chat": chat}


def test_of(document: Row) -> str:
    return f"{document['test']}\n\ncheck({document['entry_point']})"


def process_results(document: Row, results: Sequence[str]) -> dict[str, float | None]:
    """For lm-eval itself: the verdict on one document's answer."""
    attempt = function_in(results[0], document["prompt"], document["entry_point"], chat=document["chat"])
    (score,) = passes(Sandbox(), [attempt], [test_of(document)], silent)
    return {"pass@1": score.value}

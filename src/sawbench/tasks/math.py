"""MATH-500, AIME 2024 and 2025, GSM8K: one final answer each, judged as mathematics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sawbench.core.engine import Score
from sawbench.core.progress import Progress, silent
from sawbench.scoring.mathjudge import judge_all
from sawbench.tasks.benchmark import Benchmark, Sample, thought_open
from sawbench.tasks.documents import Row, as_split, repeated, require, rows


@dataclass(frozen=True, kw_only=True)
class MathBenchmark(Benchmark):
    """Options as in Benchmark, and:

    Args:
        number: an answer that is neither boxed nor stated may be the text's last number (answers known to be numbers).
    """

    number: bool = False

    def score(self, samples: Sequence[Sample], progress: Progress = silent) -> list[Score]:
        return judge_all(
            [sample["text"] for sample in samples],
            [sample["document"]["answer"] for sample in samples],
            [thought_open(sample) for sample in samples],
            number=self.number,
            progress=progress,
        )


def math500(row: Row) -> Row:
    require(row, "problem", "answer", "unique_id")
    return {"item": row["unique_id"], "problem": row["problem"], "answer": str(row["answer"])}


def aime(row: Row) -> Row:
    """Of either year and of several publishers: the question is under one of two names, the answer an integer."""
    problem = row.get("problem") or require(row, "question")["question"]
    require(row, "id", "answer")
    return {"item": str(row["id"]), "problem": problem, "answer": str(int(float(row["answer"])))}


def gsm8k(row: Row) -> Row:
    require(row, "question", "answer")
    return {"problem": row["question"], "answer": row["answer"].rpartition("####")[2].strip()}


SOURCES: Mapping[str, tuple[Callable[[Row], Row], tuple[str, str | None, str]]] = {
    "math500": (math500, ("HuggingFaceH4/MATH-500", None, "test")),
    "aime24": (aime, ("HuggingFaceH4/aime_2024", None, "train")),
    "aime25": (aime, ("math-ai/aime25", None, "test")),
    "gsm8k": (gsm8k, ("openai/gsm8k", "main", "test")),
}


def documents(
    source: str, data: str | None = None, repeats: int = 1, items: int | None = None, **_: Any
) -> dict[str, Any]:
    """The lm-eval data set of one of SOURCES: a document for each (item, repeat)."""
    read, hub = SOURCES[source]
    found = (({"item": str(index)} | read(row)) for index, row in enumerate(rows(data, *hub)))
    return as_split(repeated(found, repeats, items))


def process_results(document: Row, results: Sequence[str]) -> dict[str, float | None]:
    """For lm-eval itself."""
    (score,) = judge_all(results[:1], [document["answer"]], [False])
    return {"accuracy": score.value}

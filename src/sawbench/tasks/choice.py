"""Multiple choice: GPQA-Diamond with its options permuted, MMLU-Pro as published."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

from sawbench.core.engine import Score
from sawbench.core.progress import Progress, silent
from sawbench.core.records import Metric
from sawbench.scoring.choice import judge
from sawbench.tasks.benchmark import Benchmark, Sample, items_of, share, thought_open
from sawbench.tasks.documents import Row, as_split, repeated, require, rows

LETTERS = "ABCDEFGHIJ"
GPQA = ("Record ID", "Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


@dataclass(frozen=True, kw_only=True)
class Choice(Benchmark):
    """Options as in Benchmark. The headline is the careful rule's; the rule of the paper's client stands beside it."""

    def score(self, samples: Sequence[Sample], progress: Progress = silent) -> list[Score]:
        return [
            judge(s["text"], s["document"]["answer"], LETTERS[: s["document"]["count"]], thought_open(s))
            for s in samples
        ]

    def headline(self, samples: Sequence[Sample], scores: Sequence[Score]) -> tuple[Metric, ...]:
        papers = share("accuracy_paper_rule", [score.details["paper_rule"] for score in scores], items_of(samples))
        return (*super().headline(samples, scores), papers)


@dataclass(frozen=True, kw_only=True)
class Gpqa(Choice):
    """GPQA-Diamond (Rein et al. 2023). Every repeat asks with another order of the options."""

    repeats_differ: ClassVar[bool] = True


def permutation(item: str, repeat: int, seed: int, count: int = 4) -> list[int]:
    """An order of ``count`` options that depends on nothing but its arguments: sorted by a hash of each place."""
    return sorted(range(count), key=lambda place: sha256(f"{seed}\0{item}\0{repeat}\0{place}".encode()).digest())


def gpqa_documents(
    data: str | None = None, repeats: int = 1, items: int | None = None, seed: int = 0, **_: Any
) -> dict[str, Any]:
    """A document for each (item, repeat): options in that repeat's order, the order itself, and the right letter."""
    found = (require(row, *GPQA) for row in rows(data, "Idavidrein/gpqa", "gpqa_diamond", "train"))
    expanded = repeated(({"item": row["Record ID"], "row": row} for row in found), repeats, items)
    return as_split(_permuted(entry["item"], entry["repeat"], entry["row"], seed) for entry in expanded)


def _permuted(item: str, repeat: int, row: Row, seed: int) -> Row:
    order = permutation(item, repeat, seed)
    options = [row[GPQA[2 + place]].strip() for place in order]
    return {
        "item": item,
        "repeat": repeat,
        "question": row["Question"].strip(),
        "options": listed(options),
        "order": order,
        "count": 4,
        "answer": LETTERS[order.index(0)],
    }


def mmlu_pro_documents(data: str | None = None, repeats: int = 1, items: int | None = None, **_: Any) -> dict[str, Any]:
    """MMLU-Pro's test questions, up to ten options each, in their published order."""
    found = rows(data, "TIGER-Lab/MMLU-Pro", None, "test")
    return as_split(repeated((_mmlu_pro(row) for row in found), repeats, items))


def _mmlu_pro(row: Row) -> Row:
    require(row, "question_id", "question", "options", "answer", "category")
    options = json.loads(row["options"]) if isinstance(row["options"], str) else list(row["options"])
    kept = [option for option in options if option != "N/A"]
    return {
        "item": str(row["question_id"]),
        "question": row["question"],
        "options": listed(kept),
        "count": len(kept),
        "answer": row["answer"],
        "category": row["category"],
    }


def listed(options: Sequence[str]) -> str:
    return "\n".join(f"{LETTERS[at]}) {option}" for at, option in enumerate(options))


def process_results(document: Row, results: Sequence[str]) -> dict[str, float | None]:
    """For lm-eval itself."""
    score = judge(results[0], document["answer"], LETTERS[: document["count"]])
    return {"accuracy": score.value, "accuracy_paper_rule": score.details["paper_rule"]}

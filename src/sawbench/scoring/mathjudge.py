"""Verdicts on mathematical answers: by text and exact numbers at once, by algebra in worker processes where need be.

A comparison that fails or comes to no end is unscored, not wrong.
"""

from collections.abc import Sequence

from sawbench.core.engine import Score
from sawbench.core.progress import Progress, silent
from sawbench.scoring.mathequal import equal
from sawbench.scoring.mathtext import final_answer
from sawbench.scoring.mathworker import Verdict, compare_all


class Undecided(Exception):
    """Text does not settle it: two expressions have to be compared."""


def undecided(gold: str, answer: str) -> bool:
    raise Undecided


def judge(text: str, gold: str, thought_open: bool = False, number: bool = False) -> Score | tuple[str, str]:
    """The verdict on one text, or the pair (gold, answer) that algebra must decide."""
    answer = final_answer(text, thought_open, number)
    if answer is None:
        return Score(0.0, None, "no answer is stated")
    try:
        return verdict(equal(gold, answer, undecided), answer, "text")
    except Undecided:
        return gold, answer


def verdict(same: Verdict, answer: str, by: str) -> Score:
    if isinstance(same, str):
        return Score(None, answer, same)
    return Score(float(same), answer, f"{'equal' if same else 'different'} by {by}")


def judge_all(
    texts: Sequence[str],
    golds: Sequence[str],
    thoughts_open: Sequence[bool],
    *,
    number: bool = False,
    workers: int | None = None,
    progress: Progress = silent,
) -> list[Score]:
    """Verdicts in order. Workers are started only where text leaves something open."""
    found = [judge(*case, number) for case in zip(texts, golds, thoughts_open, strict=True)]
    pairs = [case for case in found if isinstance(case, tuple)]
    decided = iter(compare_all(pairs, workers=workers, progress=progress) if pairs else [])
    return [verdict(next(decided), case[1], "algebra") if isinstance(case, tuple) else case for case in found]

"""Every golden answer gets the verdict that was written down for it."""

import pytest

from helpers.golden import CODE, FRACTIONS, LETTERS, NUMBERS, STRUCTURES, UNITS, Golden
from sawbench.core.progress import silent
from sawbench.scoring import choice, mathjudge, mathtext
from sawbench.scoring.code import function_in, passes
from sawbench.scoring.sandbox import Sandbox, refusal

MATHEMATICS = [*NUMBERS, *FRACTIONS, *STRUCTURES, *UNITS]
PROMPT = 'def f(x):\n    """One more."""\n'


def test_there_are_enough() -> None:
    assert len([*LETTERS, *MATHEMATICS, *CODE]) >= 120


@pytest.mark.parametrize("case", LETTERS, ids=lambda case: case.text[:40])
def test_letters(case: Golden) -> None:
    score = choice.judge(case.text, case.target)
    assert (score.value, score.answer) == (case.value, case.answer)


@pytest.mark.parametrize("case", MATHEMATICS, ids=lambda case: case.text[:40])
def test_mathematics_is_extracted(case: Golden) -> None:
    assert mathtext.final_answer(case.text) == case.answer


def test_mathematics_is_judged() -> None:
    """All in one call, as a task does it."""
    scores = mathjudge.judge_all(
        [c.text for c in MATHEMATICS], [c.target for c in MATHEMATICS], [False] * len(MATHEMATICS)
    )
    wrong = [
        (c, s.reason) for c, s in zip(MATHEMATICS, scores, strict=True) if (s.value, s.answer) != (c.value, c.answer)
    ]
    assert not wrong


@pytest.mark.skipif(refusal("strict") is not None, reason="this machine forbids namespaces")
def test_code() -> None:
    attempts = [function_in(case.text, PROMPT, case.target) for case in CODE]
    scores = passes(Sandbox(), attempts, ["assert f(1) == 2"] * len(CODE), silent)
    wrong = [
        (c, s)
        for c, s in zip(CODE, scores, strict=True)
        if s.value != c.value or (s.answer is None) != (c.answer is None)
    ]
    assert not wrong
    assert all(
        case.answer is None or case.answer in (attempt.code or "") for case, attempt in zip(CODE, attempts, strict=True)
    )

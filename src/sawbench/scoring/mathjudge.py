"""Verdicts on mathematical answers: text and exact numbers at once, algebra in worker processes with a time limit.

Expressions go to math-verify, whose known false equalities (tiny numbers, an assignment's last part, signs that get
lost) are caught by a second look: both sides evaluated to 30 digits, at random points where they have symbols. Each
comparison runs in a child of its worker that is killed at the limit: sympy cannot be interrupted otherwise, and
math-verify's own timer works on a main thread alone. What hangs is unscored, not wrong.
"""

import json
import logging
import os
import random
import resource
import select
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from sawbench.core.engine import Score
from sawbench.core.progress import Progress, silent
from sawbench.scoring.mathequal import equal
from sawbench.scoring.mathtext import final_answer
from sawbench.scoring.sandbox import available_workers

SECONDS = 2
"""CPU seconds of one comparison; PATIENCE times as many on the clock, where the machine is busy."""
PATIENCE = 10
MEMORY = 4 << 30  # bytes of address space of one comparison
WARMING = (
    r"\frac{x+1}{2}",
    r"\sqrt{2} - 3\pi",
    r"(a-b)(c^2+1)",
    r"\sin x + \log_2 8",
    r"2x + y = 3",
    r"1.5 + 2i",
    r"e^{-t}",
)
"""Parsed once a worker: a parser that has seen expressions of a kind is twenty times as fast with the next."""
POINTS, DIGITS, TOLERANCE = 3, 30, 1e-12


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


def verdict(same: bool | None, answer: str, by: str) -> Score:
    if same is None:
        return Score(None, answer, "the comparison came to no end in time and memory")
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


def compare_all(
    pairs: Sequence[tuple[str, str]],
    *,
    seconds: int = SECONDS,
    workers: int | None = None,
    progress: Progress = silent,
) -> list[bool | None]:
    """Equality of each (gold, answer); None where it took more than ``seconds`` (of CPU) or too much memory."""
    count = min(workers or available_workers(), len(pairs))
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=_prepare) as pool:
        return list(progress(pool.map(partial(_in_child, seconds=seconds), pairs), len(pairs), "comparing answers"))


def _prepare() -> None:
    """Import the algebra once a worker, and warm it; its children inherit both."""
    logging.disable(logging.ERROR)
    for expression in WARMING:
        algebra(expression, f"{expression} + 0")


def _in_child(pair: tuple[str, str], seconds: int) -> bool | None:
    """The comparison in a fork, which is killed at the limit; its answer comes through a pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(pair, seconds, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready, _, _ = select.select([pipe], [], [], PATIENCE * seconds)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        answer = pipe.read() if ready else ""
    os.waitpid(pid, 0)
    return json.loads(answer) if answer else None


def _child(pair: tuple[str, str], seconds: int, writing: int) -> None:
    """Write the verdict and leave without a worker's clean-up."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(writing, json.dumps(equal(*pair, algebra)).encode())
    finally:
        os._exit(0)


def algebra(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are equal: numbers say so, and so does math-verify."""
    from math_verify import LatexExtractionConfig, parse, verify

    ours, theirs = (parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None) for text in (gold, answer))
    if not ours or not theirs or not agree_in_numbers(ours[0], theirs[0]):
        return False
    return bool(verify(ours, theirs, timeout_seconds=None))


def agree_in_numbers(gold: Any, answer: Any) -> bool:
    """Whether two parsed expressions have the same symbols and, at random points, the same values. Relations must
    have the same strictness; other things that have no value must be of one type."""
    import sympy

    if isinstance(gold, sympy.core.relational.Relational) and isinstance(answer, sympy.core.relational.Relational):
        return gold.rel_op.strip("<>") == answer.rel_op.strip("<>")
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return type(gold) is type(answer)
    symbols = sorted(gold.free_symbols, key=str)
    if sorted(map(str, symbols)) != sorted(map(str, answer.free_symbols)):
        return bool(sympy.simplify(gold - answer) == 0)
    draw = random.Random(0)
    points = [{str(s): draw.uniform(0.3, 3.0) for s in symbols} for _ in range(POINTS if symbols else 1)]
    return all(_close(_value(gold, point), _value(answer, point)) for point in points)


def _value(expression: Any, point: dict[str, float]) -> complex | Any:
    values = {symbol: point[str(symbol)] for symbol in expression.free_symbols}
    return expression.doit().evalf(DIGITS, subs=values)


def _close(one: Any, other: Any) -> bool:
    """Relative, so that tiny numbers are told apart."""
    scale = max(abs(one), abs(other))
    return bool(scale == 0 or abs(one - other) <= TOLERANCE * scale)

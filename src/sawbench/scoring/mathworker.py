"""Algebra in processes that can be ended: sympy cannot be interrupted, and some expressions never come to an end.

Expressions go to math-verify, whose known false equalities (tiny numbers, an assignment's last part, signs that get
lost) are caught by a second look: both sides evaluated to 30 digits, at random points where they have symbols. A
worker of the pool imports and warms all this once and forks a comparer from it, which serves until a comparison uses
up its CPU time or memory; then the next is forked in milliseconds. math-verify's own timer works on a main thread only.
"""

import json
import logging
import os
import random
import resource
import select
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import ceil
from multiprocessing import get_context
from typing import IO, Any

from sawbench.core.progress import Progress, silent
from sawbench.scoring.mathequal import equal
from sawbench.scoring.sandbox import available_workers

SECONDS = 2
"""CPU seconds of one comparison; PATIENCE times as many on the clock, where the machine is busy."""
PATIENCE = 10
MEMORY = 4 << 30  # bytes of address space
WARMING = (r"\frac{x+1}{2}", r"\sqrt{2} - 3\pi", r"(a-b)(c^2+1)", r"\sin x", "2x + y = 3", "1.5 + 2i", "e^{-t}")
"""Parsed once a worker: a parser that has seen expressions of a kind is twenty times as fast with the next."""
UNFINISHED = "the comparison came to no end in time and memory"
Verdict = bool | str
"""Equal or not, or why nothing is known."""
POINTS, DIGITS, TOLERANCE = 3, 30, 1e-12


def compare_all(
    pairs: Sequence[tuple[str, str]],
    *,
    seconds: int = SECONDS,
    workers: int | None = None,
    progress: Progress = silent,
) -> list[Verdict]:
    """Equality of each (gold, answer), in order; a reason where a comparison failed or exceeded its CPU time or
    memory."""
    count = min(workers or available_workers(), len(pairs))
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=_prepare) as pool:
        return list(progress(pool.map(partial(_compared, seconds=seconds), pairs), len(pairs), "comparing answers"))


class Comparer:
    """A fork of this process that compares pairs until one of them ends it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            _serve(theirs)
        theirs.close()
        self.answers: IO[str] = self.socket.makefile("r")

    def ask(self, pair: tuple[str, str], seconds: int) -> tuple[Verdict, bool]:
        """The verdict, and whether the comparer lived through it."""
        self.socket.sendall((json.dumps([*pair, seconds]) + "\n").encode())
        ready, _, _ = select.select([self.socket], [], [], PATIENCE * seconds)
        line = self.answers.readline() if ready else ""
        if not line:
            self.end()
        return (json.loads(line) if line else UNFINISHED), bool(line)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.answers.close()
        self.socket.close()


_comparer: Comparer | None = None
"""The pool worker's own."""


def _compared(pair: tuple[str, str], seconds: int) -> Verdict:
    global _comparer
    _comparer = _comparer or Comparer()
    verdict, alive = _comparer.ask(pair, seconds)
    if not alive:
        _comparer = None
    return verdict


def _prepare() -> None:
    """Import and warm the algebra once a worker; its forks inherit both."""
    logging.disable(logging.ERROR)
    for expression in WARMING:
        algebra(expression, f"{expression} + 0")


def _serve(connection: socket.socket) -> None:
    """Answer lines of [gold, answer, seconds] until the other side closes; leaves without a worker's clean-up."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with connection, connection.makefile("r") as lines:
        for line in lines:
            gold, answer, seconds = json.loads(line)
            _grant(seconds)
            connection.sendall((json.dumps(_attempted(gold, answer)) + "\n").encode())
    os._exit(0)


def _grant(seconds: int) -> None:
    """From here on ``seconds`` of CPU, then SIGXCPU, which ends the process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(usage.ru_utime + usage.ru_stime) + seconds, hard))


def _attempted(gold: str, answer: str) -> Verdict:
    try:
        return equal(gold, answer, algebra)
    except MemoryError:
        return UNFINISHED
    except Exception as error:  # sympy raises what it likes on strange input; no verdict came of it
        return f"the comparison failed: {type(error).__name__}"


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


def _value(expression: Any, point: dict[str, float]) -> Any:
    values = {symbol: point[str(symbol)] for symbol in expression.free_symbols}
    return expression.doit().evalf(DIGITS, subs=values)


def _close(one: Any, other: Any) -> bool:
    """Relative, so that tiny numbers are told apart; what is infinite has no difference."""
    if one.is_infinite or other.is_infinite:
        return bool(one == other)
    scale = max(abs(one), abs(other))
    return bool(scale == 0 or abs(one - other) <= TOLERANCE * scale)

"""From an answer to a program, and from the program's end to a verdict."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sawbench.core.engine import Score
from sawbench.core.progress import Progress
from sawbench.scoring.sandbox import Outcome, Program, Sandbox
from sawbench.scoring.text import answer_of, final_code


@dataclass(frozen=True)
class Attempt:
    """Code found in an answer, or why there is none."""

    code: str | None
    reason: str = ""


def function_in(text: str, prompt: str, entry_point: str, thought_open: bool = False, chat: bool = True) -> Attempt:
    """The program that an answer to HumanEval means: what stands before the function in the prompt (imports, helpers)
    and the answer's final code block, or, where that holds only a body, the prompt and the body.

    ``chat`` false: the answer continues the prompt itself.
    """
    answer = answer_of(text, thought_open)
    if answer is None:
        return Attempt(None, "the thought was not closed")
    if not chat:
        return Attempt(prompt + answer)
    code = final_code(answer)
    if code is None and defines(answer, entry_point):
        code = answer
    if code is None:
        return Attempt(None, "no code block")
    return Attempt(preamble(prompt, entry_point) + code if defines(code, entry_point) else prompt + code)


def defines(code: str, name: str) -> bool:
    return re.search(rf"^(async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE) is not None


def preamble(prompt: str, entry_point: str) -> str:
    """The prompt up to the function asked for."""
    return re.split(rf"^def\s+{re.escape(entry_point)}\s*\(", prompt, maxsplit=1, flags=re.MULTILINE)[0]


def passes(sandbox: Sandbox, attempts: Sequence[Attempt], tests: Sequence[str], progress: Progress) -> list[Score]:
    """1 where the attempt followed by its test runs to the last line, 0 where it does not or there is no code.

    The last line prints a word drawn for this run, so that code which leaves early does not pass.
    """
    words = [secrets.token_hex(16) for _ in attempts]
    programs = {
        at: Program(f"{attempt.code}\n\n{test}\n\nprint('\\n{word}')\n", run_name="solution")
        for at, (attempt, test, word) in enumerate(zip(attempts, tests, words, strict=True))
        if attempt.code is not None
    }
    outcomes = dict(zip(programs, sandbox.run_many(list(programs.values()), progress), strict=True))
    return [verdict(attempt, outcomes.get(at), words[at]) for at, attempt in enumerate(attempts)]


def verdict(attempt: Attempt, outcome: Outcome | None, word: str) -> Score:
    if outcome is None:
        return Score(0.0, None, attempt.reason)
    if outcome.error:
        return Score(0.0, attempt.code, outcome.error)
    if outcome.stdout.rstrip("\n").rpartition("\n")[2] != word:
        return Score(0.0, attempt.code, "the program left before its tests were through")
    return Score(1.0, attempt.code, "passed")

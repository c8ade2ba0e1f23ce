"""From an answer to a program, and from the program's end to a verdict."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sawbench.core.engine import Score
from sawbench.core.progress import Progress
from sawbench.scoring.sandbox import Outcome, Program, Sandbox
from sawbench.scoring.text import answer_of, code_blocks

STOPS = re.compile(r"^(?:(?:async\s+)?def\s|class\s|@\w|if\s+__name__|print\s*\(|```|~~~)", re.MULTILINE)
"""Where a model that continues a function has left it."""


@dataclass(frozen=True)
class Attempt:
    """Code found in an answer, or why there is none."""

    code: str | None
    reason: str = ""


def function_in(text: str, prompt: str, entry_point: str, thought_open: bool = False, chat: bool = True) -> Attempt:
    """The program that an answer to HumanEval means: what stands before the function in the prompt (imports, helpers)
    and the answer's last code block that defines it, or, where none does, the prompt and the last block as a body.

    ``chat`` false: an answer that begins indented is the body, up to what is no longer the function.
    """
    answer = answer_of(text, thought_open)
    if answer is None:
        return Attempt(None, "the thought was not closed")
    if not chat and continues(answer):
        return Attempt(prompt + STOPS.split(answer, maxsplit=1)[0])
    blocks = [block for block in code_blocks(answer) if block.strip()] or [answer] * defines(answer, entry_point)
    if not blocks:
        return Attempt(None, "no code block")
    code = next((block for block in reversed(blocks) if defines(block, entry_point)), blocks[-1])
    return Attempt(preamble(prompt, entry_point) + code if defines(code, entry_point) else prompt + code)


def continues(answer: str) -> bool:
    """Whether the first line that holds anything is indented, and no fence: the body of the function before it."""
    return re.match(r"(?:[ \t]*\n)*[ \t]+(?!```|~~~)\S", answer) is not None


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

"""Letters of multiple-choice answers, by two rules: the one that the paper's client uses, and a careful one.

The first takes the first ``Answer: X`` of the whole text, thoughts included, and does not see a letter in brackets or
bold. The second reads the answer alone, takes the last letter that it states, and takes none where two are stated at
once or the letter is only a word (``Answer: A common mistake ...``).
"""

import re

from sawbench.core.engine import Score
from sawbench.scoring.text import answer_of

PAPER = re.compile(r"answer[ \t]*:[ \t]*\$?([A-J])\$?", re.IGNORECASE)
MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol)\b|[*_`${}\\]")
BOXED = re.compile(r"\\f?box(?:ed)?\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
FILLER = r"(?i:the\s+)?(?i:correct\s+|right\s+|best\s+|final\s+)?(?i:option|choice|letter)?"
VERB = r"(?i:\s+(?:is|would\s+be|must\s+be|should\s+be|to\s+this\s+question\s+is))"
STATED = re.compile(
    rf"\b(?:(?i:answer){VERB}?\s*[:=]?|(?i:choice|option|selection)(?:{VERB}\s*:?|\s*:))\s*{FILLER}\s*[:\"'“]?\s*"
    r"(?P<open>[(\[])?(?P<letter>[A-J])(?P<close>[)\]])?(?![\w'’])(?=(?P<rest>[^\n]*))"
)
ALONE = re.compile(r"^\W*\(?([A-J])\)?(?:[.):]?\s*$|[.):]\s+\S.*$)")
AMBIGUOUS = re.compile(r"^\s*(?:or|and|/|,|&)\s*\(?[A-J]\)?(?![\w'’])")
SENTENCE = re.compile(r"^\s+(?!because|since|as\b|for\b|with\b|which|where|due|by\b|from\b|given\b|if\b)[a-z]")


def letter(text: str, options: str = "ABCD", thought_open: bool = False) -> str | None:
    """The letter that an answer states, or None."""
    answer = answer_of(text, thought_open)
    if answer is None:
        return None
    stated = [_boxed_letter(found[1]) for found in BOXED.finditer(answer)]
    if not any(stated):
        stated = _stated(MARKUP.sub("", answer))
    last = next((found for found in reversed(stated) if found), None)
    return last if last is not None and last in options else None


def paper_letter(text: str, options: str = "ABCD") -> str | None:
    """The letter that the paper's client finds."""
    found = PAPER.search(text)
    return found[1].upper() if found and found[1].upper() in options else None


def _boxed_letter(content: str) -> str | None:
    found = ALONE.match(MARKUP.sub("", content).strip())
    return found[1] if found else None


def _stated(text: str) -> list[str | None]:
    """Letters in order of statement; a bare letter counts only as the last line, when nothing states one before."""
    found = [_letter_of(match) for match in STATED.finditer(text)]
    if any(found):
        return found
    lines = [line for line in text.splitlines() if line.strip()]
    alone = ALONE.match(lines[-1]) if lines else None
    return [alone[1]] if alone else []


def _letter_of(match: re.Match[str]) -> str | None:
    rest, bracketed = match["rest"], match["open"] or match["close"]
    is_word = not bracketed and match["letter"] in "AI" and SENTENCE.match(rest)
    return None if AMBIGUOUS.match(rest) or is_word else match["letter"]


def judge(text: str, target: str, options: str = "ABCD", thought_open: bool = False) -> Score:
    """The careful rule's verdict; ``details`` hold the paper's."""
    found, papers = letter(text, options, thought_open), paper_letter(text, options)
    details = {"paper_rule": float(papers == target), "paper_answer": papers}
    if found is None:
        return Score(0.0, None, "no letter is stated", details)
    return Score(float(found == target), found, "right" if found == target else f"{target} is right", details)

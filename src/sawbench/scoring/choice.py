"""Letters of multiple-choice answers, by two rules: the one that the paper's client uses, and a careful one.

The first takes the first ``Answer: X`` of the whole text, thoughts included, and does not see a letter in brackets or
bold. The second reads the answer alone, takes the last letter that it states, and takes none where two are stated at
once or the letter is only a word (``Answer: A common mistake ...``, ``Answer: a long story``).
"""

import re
import unicodedata

from sawbench.core.engine import Score
from sawbench.scoring.text import answer_of

PAPER = re.compile(r"answer[ \t]*:[ \t]*\$?([A-J])\$?", re.IGNORECASE)
MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol)\b|[*_`${}\\]")
BOXED = re.compile(r"\\f?box(?:ed)?\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.IGNORECASE | re.DOTALL)
FILLER = r"(?i:the\s+)?(?i:correct\s+|right\s+|best\s+|final\s+)?(?i:option|choice|letter)?"
VERB = r"(?i:\s+(?:is|would\s+be|must\s+be|should\s+be|to\s+this\s+question\s+is))"
STATED = re.compile(
    rf"\b(?:(?i:answer){VERB}?\s*[:=]?|(?i:choice|option|selection)(?:{VERB}\s*:?|\s*:))\s*{FILLER}\s*[:\"'“]?\s*"
    r"(?P<open>[(\[])?(?P<letter>[A-Ja-j])(?P<close>[)\]])?(?![\w'’])(?=(?P<rest>[^\n]*))"
)
ALONE = re.compile(r"^\W*\(?([A-J])\)?(?:[.):]?\s*$|[.):]\s+\S.*$)")
AMBIGUOUS = re.compile(r"^\s*(?:(?i:or|and)|/|,|&)\s*\(?[A-J]\)?(?![\w'’])")
SENTENCE = re.compile(
    r"^\s+(?!is\s+(?:the\s+)?(?:correct|right|best|true|answer)\b)"
    r"(?!because|since|as\b|for\b|with\b|which|where|due|by\b|from\b|given\b|if\b)[a-z]"
)
CLAIM = re.compile(r":|\b(?:is|be)\b", re.IGNORECASE)
END = re.compile(r"^\s*(?:$|[.,;:!?](?:\s|$))")


def letter(text: str, options: str = "ABCD", thought_open: bool = False) -> str | None:
    """The letter that an answer states, or None."""
    answer = answer_of(text, thought_open)
    if answer is None:
        return None
    answer = unicodedata.normalize("NFKC", answer)  # full-width colons, brackets and letters
    stated = [_boxed_letter(found[1]) for found in BOXED.finditer(answer)]
    if not any(stated):
        stated = _stated(MARKUP.sub("", TAG.sub(r"\nAnswer: \1\n", answer)))
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
    rest = match["rest"] if match["letter"].isupper() else match["rest"].upper()
    return None if AMBIGUOUS.match(rest) or _is_word(match) else match["letter"].upper()


def _is_word(match: re.Match[str]) -> bool:
    """Whether a letter belongs to a sentence. A small one states something in brackets, or alone behind a colon."""
    letter, rest = match["letter"], match["rest"]
    if letter.isupper():
        return not (match["open"] or match["close"]) and letter in "AI" and SENTENCE.match(rest) is not None
    if match["close"]:
        return CLAIM.search(match[0]) is None
    return ":" not in match[0] or END.match(rest) is None


def judge(text: str, target: str, options: str = "ABCD", thought_open: bool = False) -> Score:
    """The careful rule's verdict; ``details`` hold the paper's."""
    found, papers = letter(text, options, thought_open), paper_letter(text, options)
    details = {"paper_rule": float(papers == target), "paper_answer": papers}
    if found is None:
        return Score(0.0, None, "no letter is stated", details)
    return Score(float(found == target), found, "right" if found == target else f"{target} is right", details)

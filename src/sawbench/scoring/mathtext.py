"""Mathematical answers as text: found, and brought to one way of writing."""

import re

from sawbench.scoring.text import answer_of

BOX = re.compile(r"\\f?box(?:ed)?\b\s*")
STATED = re.compile(r"(?:answer|result)\s*(?:is\s*:?|:|=)\s*\**\s*([^\n]+)", re.IGNORECASE)
HASHES = re.compile(r"^####\s*(.+)$", re.MULTILINE)
NUMBER = re.compile(r"-?\$?\d(?:\d|\{,\}|,\\!|,)*(?:\.\d+)?(?:/\d+)?%?")

SPELLINGS = (
    (r"[−–]", "-"), (r"×", r"\\times "), (r"·", r"\\cdot "), (r"π", r"\\pi "), (r"∞", r"\\infty "), (r"∪", r"\\cup "),
    (r"≤", r"\\le "), (r"≥", r"\\ge "), (r"±", r"\\pm "), (r"√\{?(\w+)\}?", r"\\sqrt{\1}"), (r"°", r"^\\circ "),
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])", ""),
    (r"(?<=\d)\{,\}(?=\d{3}(?!\d))", ","), (r"(?<!\\)\\[!,;: ]|\\q?quad(?![a-z])|~", " "),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"), (r"\\(?:leq|leqslant)(?![a-z])|<=", r"\\le "),
    (r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge "), (r"\\lt(?![a-z])", "<"), (r"\\gt(?![a-z])", ">"),
    (r"\\lbrace(?![a-z])", r"\\{"), (r"\\rbrace(?![a-z])", r"\\}"),
    (r"\\(?:mbox|textbf|textit|mathrm|mathbf|mathit|operatorname)(?![a-z])\s*(?=\{)", r"\\text"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"), (r"\\frac\s*(\d)\s*(?=\{)", r"\\frac{\1}"),
    (r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}"), (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
    (r"\^\s*\{?\s*\\circ\s*\}?", r"\\text{degree}"), (r"_\{(\w+)\}", r"_\1"), (r"\^\{(\w)\}", r"^\1"),
    (r"\\\$|\$|\\\(|\\\)|\\\[|\\\]", ""), (r"\\%", "%"),
    (r"(^|[(\[{,=<>]|\\(?:[lg]e|cup)(?![a-z]))\s*\+\s*(?=\\infty)", r"\1 "),
)  # fmt: skip


def final_answer(text: str, thought_open: bool = False, number: bool = False) -> str | None:
    """The last answer of a text: boxed, else behind ``####``, else stated in words; with ``number`` the last number
    of such a statement, else of the whole text. None where nothing is answered or the thought was not closed."""
    answer = answer_of(text, thought_open)
    if answer is None:
        return None
    stated = [sentence(found) for found in STATED.findall(answer)]
    hashes = [found.strip() for found in HASHES.findall(answer)]
    numbers = numbers_in(answer) if number else []
    if number:
        stated = [last for each in stated for last in numbers_in(each)[-1:]]
    for kind in (boxes(answer), hashes, stated, numbers):
        if found := [content for content in kind if content.strip()]:
            return found[-1].strip()
    return None


def numbers_in(text: str) -> list[str]:
    return [found.rstrip(",") for found in NUMBER.findall(text)]


def boxes(text: str) -> list[str]:
    r"""Contents of ``\boxed{...}`` with balanced braces, and of ``\boxed 5``; a box that is cut off holds nothing."""
    return [content for found in BOX.finditer(text) if (content := _box_at(text, found.end())) is not None]


def _box_at(text: str, start: int) -> str | None:
    if text[start : start + 1] != "{":
        bare = re.match(r"[^\s$.,{}]+", text[start:])
        return bare[0] if bare else None
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1 : at]
    return None


def sentence(text: str) -> str:
    """Up to the end of the sentence, without emphasis."""
    text = re.split(r"(?<=[^\d])\.\s|\.$|\s+(?:because|since|which)\b", text.strip())[0]
    return text.strip().strip("*").rstrip(".").strip()


def cleaned(expression: str) -> str:
    """One spelling for what is written in several: brackets' sizes, fractions, spaces, degree signs, dollar signs,
    commas between thousands, the plus of infinity."""
    text = expression.strip()
    for pattern, replacement in SPELLINGS:
        text = re.sub(pattern, replacement, text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;").strip()

"""Whether two mathematical answers are the same, decided by their structure first and by algebra only at the leaves.

Sets, tuples, intervals, lists, matrices and unions are compared part by part with their brackets, numbers exactly as
fractions, units and words as text. An inequality solved for its variable is the interval that it describes. What is
left, an expression with symbols, is handed to ``algebra``. So a comparer of expressions never sees ``(0, 1)`` against
``(0, 1.5)``, and cannot find them equal.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sawbench.scoring.mathtext import cleaned

Algebra = Callable[[str, str], bool]
Kind = Literal["list", "set", "union", "matrix", "()", "[]", "(]", "[)"]

INTEGER = r"\d+(?:,\d{3})*|\d+"
DECIMAL = re.compile(rf"([-+]?)((?:{INTEGER})?(?:\.\d*)?)(?:(?:\\times|\\cdot|\*)10\^\{{?(-?\d+)\}}?|[eE]([-+]?\d+))?")
FRACTION = re.compile(r"([-+]?)(\d+)?\\frac\{([-+]?\d+)\}\{([-+]?\d+)\}")
SLASHED = re.compile(r"([-+]?\d+)/(\d+)")
GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega)(?![a-z])"
ASSIGNED = re.compile(
    rf"^\s*(?:\\text\{{[^{{}}]*\}}|{GREEK}|[A-Za-z]\w{{0,2}}(?:\([A-Za-z]\)|\^\{{?-1\}}?(?:\(\w\))?)?)"
    r"\s*(?:=|\\in(?![a-z]))\s*(.+)$"
)
MATRIX = re.compile(r"^\\begin\{([bpvV]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}$", re.DOTALL)
TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
UNIT = re.compile(
    r"^(?P<value>.*?[\d})])(?P<gap>\s*)(?P<unit>(?:\\text\{[^{}]*\}|(?<=\s)[A-Za-z]{2,})(?:\s*\^\s*\{?\d\}?)?"
    r"(?:\s+[A-Za-z]+|\s*\\text\{[^{}]*\})*)$"
)
RELATION = re.compile(r"[=<>]|\\(?:le|ge|in|neq?)(?![a-z])")
OPEN_ENDED = re.compile(r"\\[lc]?dots|(?<!\d)\.\.\.|:|^\w+_\d+$")
"""Sequences, ratios, clock times and numbers of another base: equal as text or not at all."""
COMPARISON = re.compile(r"(<|>|\\[lg]e(?![a-z]))")
FLIPPED = {">": "<", r"\ge": r"\le"}
VARIABLE = re.compile(rf"(?:[a-df-zA-Z]|{GREEK})(?:_\w)?")
DEGREES = {"degree", "degrees", "deg"}


@dataclass(frozen=True)
class Group:
    """Parts in brackets of a kind. Parts of a list, a set and a union come in any order."""

    kind: Kind
    parts: tuple[str, ...]


def equal(gold: str, answer: str, algebra: Algebra) -> bool:
    """Whether ``answer`` says what ``gold`` does. ``algebra`` decides between two expressions in one spelling each."""
    return _equal(cleaned(gold), cleaned(answer), algebra)


def _equal(gold: str, answer: str, algebra: Algebra) -> bool:
    gold, answer = _unassigned(*_intervals(gold, answer))
    if _tight(gold) == _tight(answer):
        return True
    ours, theirs = group(gold), group(answer)
    if ours is not None or theirs is not None:
        return ours is not None and theirs is not None and _groups_equal(ours, theirs, algebra)
    return _leaves_equal(gold, answer, algebra)


def _intervals(gold: str, answer: str) -> tuple[str, str]:
    """Both with inequalities as intervals; they stay whole where one of them has still to be solved, by algebra."""
    ours, theirs = _solved(gold), _solved(answer)
    unsolved = COMPARISON.search(ours) or COMPARISON.search(theirs)
    return (gold, answer) if unsolved else (ours, theirs)


def _solved(text: str) -> str:
    """``x > 2`` as ``x \\in (2,\\infty)``, and a list of such as their union; any other text as it is."""
    found = [_interval(part) for part in split(_words_to_commas(text), ",")]
    pairs = [pair for pair in found if pair is not None]
    variables = {variable for variable, _ in pairs}
    if len(pairs) < len(found) or len(variables) != 1:
        return text
    return rf"{variables.pop()} \in " + r" \cup ".join(interval for _, interval in pairs)


def _interval(text: str) -> tuple[str, str] | None:
    """The variable of an inequality that has it alone on a side or in the middle, and the interval of its values."""
    sides = [side.strip() for side in COMPARISON.split(text)]
    if set(sides[1::2]) <= FLIPPED.keys():
        sides = [FLIPPED.get(side, side) for side in reversed(sides)]
    if len(sides) == 3:
        sides = [r"-\infty", "<", *sides] if VARIABLE.fullmatch(sides[0]) else [*sides, "<", r"\infty"]
    if len(sides) != 5 or not VARIABLE.fullmatch(sides[2]) or FLIPPED.keys() & set(sides):
        return None
    low, above, variable, below, high = sides
    if not _is_constant(low) or not _is_constant(high):
        return None
    return variable, f"{'(' if above == '<' else '['}{low},{high}{')' if below == '<' else ']'}"


def _is_constant(text: str) -> bool:
    """Whether a bound names no variable, no unit and no relation; e is the number."""
    return bool(text) and not re.search(r"[a-df-zA-Z=]", re.sub(r"\\(?!text)[a-zA-Z]+", "", text))


def _unassigned(gold: str, answer: str) -> tuple[str, str]:
    """Both without ``x =`` or ``x \\in`` in front; they stay whole where one relation stands against another."""
    ours, theirs = ASSIGNED.match(gold), ASSIGNED.match(answer)
    if ours and theirs:
        whole = _tight(gold[: ours.start(1)]) != _tight(answer[: theirs.start(1)])
    else:
        whole = RELATION.search(gold) is not None and RELATION.search(answer) is not None
    if whole:
        return gold, answer
    return (ours[1] if ours else gold), (theirs[1] if theirs else answer)


def group(text: str) -> Group | None:
    """The structure of a text; None for a single expression."""
    text = text.strip()
    if matrix := MATRIX.match(text):
        rows = [row for row in re.split(r"\\\\", matrix[2]) if row.strip()]
        return Group("matrix", tuple(f"[{','.join(row.split('&'))}]" for row in rows))
    parts = split(text, r"\\cup(?![a-z])")
    if len(parts) > 1:
        return Group("union", tuple(parts))
    if bracketed := _bracketed(text):
        return bracketed
    parts = [expanded for part in split(_words_to_commas(text), ",") for expanded in _plus_minus(part)]
    return Group("list", tuple(parts)) if len(parts) > 1 and _number(text) is None else None


def _bracketed(text: str) -> Group | None:
    opened = re.match(r"\\\{|[(\[]", text)
    closed = re.search(r"(\\\}|[)\]])$", text)
    if not opened or not closed or _closing(text) != closed.end():
        return None
    parts = split(text[opened.end() : closed.start()], ",")
    if opened[0] == r"\{" and closed[0] == r"\}":
        return Group("set", tuple(expanded for part in parts for expanded in _plus_minus(part)))
    kind = opened[0] + closed[0]
    if len(parts) < 2 or kind not in ("()", "[]", "(]", "[)"):
        return None
    return Group(kind, tuple(parts))  # type: ignore[arg-type]


def _closing(text: str) -> int:
    """Where the bracket that a text begins with is closed."""
    depth = 0
    for found in re.finditer(r"\\[{}]|[()\[\]{}]", text):
        depth += 1 if found[0][-1] in "([{" else -1
        if depth == 0:
            return found.end()
    return -1


def split(text: str, separator: str) -> list[str]:
    """Parts between separators (a pattern) that stand outside all brackets."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(rf"\\[{{}}]|[()\[\]{{}}]|(?P<cut>{separator})", text):
        if found["cut"] is None:
            depth += 1 if found[0][-1] in "([{" else -1
        elif depth == 0 and not _thousands(text, found.start(), separator):
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def _thousands(text: str, at: int, separator: str) -> bool:
    """Whether the comma at ``at`` groups digits: 10,080 is a number, 1, 234 and (1,234) at an end are not told apart
    from it, and three digits behind a comma without a space count as a group."""
    before = re.search(r"(?<![\d,.])\d{1,3}(?:,\d{3})*$", text[:at])
    return separator == "," and before is not None and re.match(r"\d{3}(?!\d)", text[at + 1 :]) is not None


def _words_to_commas(text: str) -> str:
    return re.sub(r"\s*,?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*", ",", text)


def _plus_minus(part: str) -> list[str]:
    if part.count(r"\pm") != 1:
        return [part]
    before, after = (side.strip() for side in part.split(r"\pm"))
    return [f"{before}+{after}" if before else after, f"{before}-{after}"]


def _groups_equal(gold: Group, answer: Group, algebra: Algebra) -> bool:
    kinds = {gold.kind, answer.kind}
    if len(gold.parts) != len(answer.parts) or (len(kinds) > 1 and kinds != {"list", "set"}):
        return False
    if gold.kind not in ("list", "set", "union"):
        return all(_equal(g, a, algebra) for g, a in zip(gold.parts, answer.parts, strict=True))
    return _matched(gold.parts, list(answer.parts), algebra)


def _matched(gold: Sequence[str], answers: list[str], algebra: Algebra) -> bool:
    """Whether each part of gold has a partner of its own."""
    for part in gold:
        partner = next((at for at, answer in enumerate(answers) if _equal(part, answer, algebra)), None)
        if partner is None:
            return False
        answers.pop(partner)
    return True


def _leaves_equal(gold: str, answer: str, algebra: Algebra) -> bool:
    ours, theirs = _number(gold), _number(answer)
    if ours is not None and theirs is not None:
        return ours == theirs
    if "%" in gold or "%" in answer:
        return _percents_equal(gold, answer, algebra)
    (gold, unit), (answer, their_unit) = _measured(gold), _measured(answer)
    if unit and their_unit and unit != their_unit:
        return False
    if unit or their_unit:
        return _equal(gold, answer, algebra)
    if _is_words(gold) or _is_words(answer):
        return _words(gold) == _words(answer)
    if OPEN_ENDED.search(_tight(gold)) or OPEN_ENDED.search(_tight(answer)) or _case_differs(gold, answer):
        return False
    return algebra(gold, answer)


def _case_differs(gold: str, answer: str) -> bool:
    """Whether one names R what the other names r; comparers of expressions take both for one symbol."""
    ours, theirs = (set(re.findall(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", text)) for text in (gold, answer))
    return any(name.swapcase() in theirs - ours for name in ours - theirs)


def _percents_equal(gold: str, answer: str, algebra: Algebra) -> bool:
    """50 % is 50 where the question asked for per cent, and 0.5; but 0.5 is not 0.5 %."""
    plain_gold, plain_answer = (text.replace("%", "").strip() for text in (gold, answer))
    ours, theirs = _number(plain_gold), _number(plain_answer)
    if ours is None or theirs is None or ("%" in gold and "%" in answer):
        return _equal(plain_gold, plain_answer, algebra)
    if "%" in gold:
        return theirs in (ours, ours / 100)
    return theirs / 100 == ours or (theirs == ours and ours >= 1)


def _number(text: str) -> Fraction | None:
    """The value of a written number: 1,234.5, .5, 3/4, 1\\frac{1}{2}, 2.5 \\times 10^{-3}. None for anything else."""
    tight = _tight(text)
    if found := FRACTION.fullmatch(tight):
        sign = -1 if found[1] == "-" else 1
        return sign * (int(found[2] or 0) + Fraction(int(found[3]), int(found[4]))) if int(found[4]) else None
    if found := SLASHED.fullmatch(tight):
        return Fraction(int(found[1]), int(found[2])) if int(found[2]) else None
    found = DECIMAL.fullmatch(tight)
    if not found or not re.search(r"\d", found[2]):
        return None
    exponent = int(found[3] or found[4] or 0)
    if abs(exponent) > 1000:
        return None
    return Fraction(f"{found[1]}{found[2].replace(',', '')}".rstrip(".")) * Fraction(10) ** exponent


def _measured(text: str) -> tuple[str, str]:
    """A value and its unit, in one spelling: singular, lower case, degrees left out."""
    found = UNIT.match(text)
    if not found or not found["value"].strip() or _is_function_tail(found["value"]):
        return text, ""
    unit = _words(found["unit"])
    return found["value"].strip(), "degree" if unit in DEGREES else unit.removesuffix("s")


def _is_function_tail(value: str) -> bool:
    return value.rstrip().endswith("\\")


def _is_words(text: str) -> bool:
    """A text answer: \\text{...}, or letters with a word of three among them and no command."""
    bare = TEXT.sub("", text).strip()
    if text.strip() and not re.search(r"[\w\\]", bare) and TEXT.search(text):
        return True
    return (
        "\\" not in text and re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text.strip()) is not None and len(text.strip()) > 3
    )


def _words(text: str) -> str:
    """Letters and digits alone, lower case: (C), \\text{(C)} and C are one."""
    return " ".join(re.findall(r"[a-z0-9]+", TEXT.sub(r" \1 ", text).lower()))


def _tight(text: str) -> str:
    return re.sub(r"(?<![a-z])\s+|\s+(?![a-z])", "", text.strip(), flags=re.IGNORECASE)

"""Equality laws, the published false equalities of other comparers, and answers that never come to an end."""

import json
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawbench.core.engine import Score
from sawbench.scoring import mathworker
from sawbench.scoring.mathequal import equal, group
from sawbench.scoring.mathjudge import Undecided, judge_all, undecided, verdict
from sawbench.scoring.mathtext import boxes, cleaned, final_answer
from sawbench.scoring.mathworker import UNFINISHED, algebra, compare_all

ANSWERS = (
    r"\frac{14}{3}", "9", r"\text{Evelyn}", r"90^\circ", r"x=5", "1,-2", "52_8", "(3,4]", r"\{1\pm\sqrt{5},-2\}",
    r"(0,9) \cup (9,36)", r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"15\mbox{ cm}^2", r"10,\!080",
    r"5.4 \text{ cents}", "1, 2, \\ldots, n", "12:00", r"\$18.90", r"50\%", r"1 \pm \sqrt{19}", "y = 2x + 3",
    r"x \in [-2,7]", r"(-\infty,2]", "x > 3", r"3 < y \le 5",
)  # fmt: skip


def by_text(gold: str, answer: str) -> bool | None:
    try:
        return equal(gold, answer, undecided)
    except Undecided:
        return None


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_equals_itself_by_text_alone(answer: str) -> None:
    assert by_text(answer, answer) is True


@pytest.mark.parametrize("one", ANSWERS)
def test_distinct_answers_are_never_equal_by_text(one: str) -> None:
    assert [other for other in ANSWERS if other != one and by_text(one, other)] == []


@given(st.fractions(max_denominator=500))
def test_a_number_in_all_its_spellings(value: Fraction) -> None:
    tex = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    assert by_text(tex, f"{value.numerator}/{value.denominator}")
    assert by_text(tex, rf"\dfrac{{{2 * value.numerator}}}{{{2 * value.denominator}}}")
    assert by_text(tex, rf"\frac{{{value.numerator + 1}}}{{{value.denominator}}}") is False


@given(st.integers(-(10**9), 10**9))
def test_an_integer_with_and_without_separators(value: int) -> None:
    assert by_text(str(value), f"{value:,}")
    assert by_text(f"{value:,}", rf"\${value}.00")
    for comma in (r",\!", "{,}"):
        written = f"{value:,}".replace(",", comma)
        assert by_text(str(value), written)
        assert final_answer(f"It is {written}.", number=True) == written
    assert by_text(str(value), str(value + 1)) is False


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5), st.randoms())
def test_order_counts_in_a_tuple_and_not_in_a_set(values: list[int], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    ours, theirs = (", ".join(map(str, each)) for each in (values, shuffled))
    assert by_text(rf"\{{{ours}\}}", rf"\{{{theirs}\}}")
    assert by_text(ours, theirs)
    assert by_text(f"({ours})", f"({theirs})") is (values == shuffled)


ENDS = (
    ("<", "<", "()"), ("<", r"\le", "(]"), (r"\leq", "<", "[)"), (r"\le", r"\leqslant", "[]"), ("≤", r"\lt", "[)"),
)  # fmt: skip
MIRRORED = {"<": ">", r"\lt": r"\gt", r"\le": r"\ge", r"\leq": r"\geq", r"\leqslant": r"\geqslant", "≤": "≥"}


@pytest.mark.parametrize(("above", "below", "brackets"), ENDS)
@pytest.mark.parametrize("variable", ["x", "n_1", r"\theta"])
@pytest.mark.parametrize(("low", "high"), [("1", "2"), (r"-\frac{1}{2}", r"\sqrt{3}"), ("0", r"2\pi"), ("1", "e")])
def test_an_inequality_is_the_interval_of_its_values(
    low: str, high: str, variable: str, above: str, below: str, brackets: str
) -> None:
    opened, closed = brackets
    same = {
        f"{low} {above} {variable} {below} {high}": f"{opened}{low}, {high}{closed}",
        f"{high} {MIRRORED[below]} {variable} {MIRRORED[above]} {low}": f"{opened}{low}, {high}{closed}",
        f"{variable} {below} {high}": rf"(-\infty, {high}{closed}",
        f"{low} {above} {variable}": rf"{opened}{low}, +\infty)",
    }
    for inequality, interval in same.items():
        for written in (interval, rf"{variable} \in {interval}"):
            assert by_text(written, inequality) is True
            assert by_text(inequality, written) is True
        others = {f"{one}{low}, {high}{other}" for one in "([" for other in ")]"} - {interval}
        assert not any(by_text(other, inequality) for other in others)
        assert by_text(inequality.replace(variable, "k"), inequality) is not True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("(1,2)", "x>1"),
        ("(1,2)", "1<x<3"),
        ("(1,2)", "x = 1, y = 2"),
        (r"\{1,2\}", "1<x<2"),
        ("(x+1,2)", "x+1<y<2"),
        ("3", "x<3"),
        (r"-\infty", r"\infty"),
        (r"(-\infty,2)\cup(3,\infty)", r"x<2 \text{ or } x \ge 3"),
        (r"(3,\infty)", "x>3, y>3"),
    ],
)
def test_other_values_are_another_answer(gold: str, answer: str) -> None:
    assert not equal(gold, answer, algebra)
    assert not equal(answer, gold, algebra)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"(-\infty,2)\cup(3,\infty)", r"x<2 \text{ or } x>3"),
        ("x<2, x>3", "x>3 or x<2"),
        ("x>2", "x+1>3"),
        ("y>x+1", "x+1<y"),
        (r"x \le 2", r"(-\infty, \sqrt{4}]"),
        (r"\theta = 5", "5"),
    ],
)
def test_inequalities_in_other_words(gold: str, answer: str) -> None:
    assert equal(gold, answer, algebra)
    assert equal(answer, gold, algebra)


@pytest.mark.parametrize("plain", [r"\infty", r"(2,\infty)", r"(-\infty,\infty)", r"[0,\infty)\cup\{-1\}", r"x<\infty"])
def test_infinity_with_its_sign(plain: str) -> None:
    signed = plain.replace(r"\infty", r"+\infty").replace(r"-+\infty", r"-\infty")
    assert by_text(plain, signed) is True
    assert by_text(plain, signed.replace(r"+\infty", r"+ ∞")) is True


def test_infinity_is_no_number() -> None:
    assert algebra(r"\infty", r"\infty + 1")
    assert not algebra(r"\infty", "10^{99}")
    assert not algebra(r"-\infty", r"\infty")


def test_structure_is_seen_before_algebra() -> None:
    found = group(r"(-\infty, 2) \cup [3, 4]")
    assert found is not None
    assert (found.kind, found.parts) == ("union", (r"(-\infty, 2)", "[3, 4]"))
    assert group("(x-1)(x+1)") is None
    assert group("10,080") is None


def test_the_last_box_with_balanced_braces() -> None:
    assert boxes(r"\boxed{1} \boxed{\frac{1}{2}} \boxed{cut") == ["1", r"\frac{1}{2}"]
    assert final_answer(r"\boxed{1} then \boxed{}") == "1"
    assert final_answer("I count 3 and 4", number=True) == "4"
    assert final_answer("The answer is 5 + 13 = 18 dollars. I began with 20", number=True) == "18"
    assert cleaned(r"\left( \dfrac12 ,\; 3 \right)") == r"( \frac{1}{2} , 3 )"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
        (r"1 - \frac{1}{\mathrm{e}}", r"1 + \frac{1}{\mathrm{e}}"),
        (r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}", r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}"),
        ("D = (0, 1)", "D = (0, 1.5)"),
        ("n=2, 3, 4", "n=1, 2, 3"),
        (r"19, 46, \text{ and } 82", "21, 36, and 82"),
        (r"\pm 2021", "2021"),
        ("3x-y+13=0", "3x+4y+14=0"),
        ("4", r"4\sqrt(2)"),
        (r"\cot x", r"\tan x"),
        ("x<3", "x>3"),
    ],
)
def test_published_false_equalities_are_seen_through(one: str, other: str) -> None:
    assert not equal(one, other, algebra)
    assert not equal(other, one, algebra)


def test_a_comparison_without_end_is_unscored_not_wrong() -> None:
    texts = [r"\boxed{9^{9^{9^{9}}}+x}", r"\boxed{(x-1)(x+1)}"]
    hanging, fine = judge_all(texts, ["x^2-1", "x^2-1"], [False, False])
    assert (hanging.value, hanging.answer, hanging.reason) == (None, r"9^{9^{9^{9}}}+x", UNFINISHED)
    assert fine.value == 1


@pytest.mark.parametrize(
    ("error", "reason"), [(TypeError, "failed: TypeError"), (MemoryError, "no end in time and memory")]
)
def test_why_a_comparison_has_no_verdict(monkeypatch: pytest.MonkeyPatch, error: type[Exception], reason: str) -> None:
    def broken(gold: str, answer: str) -> bool:
        raise error

    monkeypatch.setattr(mathworker, "algebra", broken)
    found = mathworker._attempted("x^2-1", "(x-1)(x+1)")
    assert isinstance(found, str)
    assert reason in found
    assert verdict(found, "x", "algebra") == Score(None, "x", found)


@pytest.mark.slow
def test_a_thousand_answers_of_which_twenty_hang() -> None:
    """From 8 workers in under 180 s, every verdict right; hanging ones end at their limit and are unscored."""
    sums = [(rf"\frac{{x+{n}}}{{7}}", rf"\frac{{x}}{{7}}+\frac{{{n + n % 2}}}{{7}}") for n in range(980)]
    hanging = [("x^2", r"9^{9^{9^{9}}}+x"), ("2", "(x+1)^{99999999}"), ("1", "x+99999999999!")] * 7
    begun = time.monotonic()
    found = compare_all([*sums, *hanging[:20]], workers=8)
    assert time.monotonic() - begun < 180
    assert found == [n % 2 == 0 for n in range(980)] + [UNFINISHED] * 20


def test_verdicts_are_plain_data() -> None:
    (score,) = judge_all([r"\boxed{1}"], ["1"], [False])
    assert json.dumps([score.value, score.answer, score.reason]) == '[1.0, "1", "equal by text"]'

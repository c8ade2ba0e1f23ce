"""Two rules for letters: what the paper's client sees, and where the careful rule differs."""

import pytest

from sawbench.scoring.choice import judge, letter, paper_letter


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: B", "B"),
        ("answer : $C$", "C"),
        ("Answer: A, no. Answer: C", "A"),  # the first match wins
        ("Answer: (B)", None),  # brackets are missed
        ("**Answer:** B", None),  # and bold
        ("<think>Answer: A</think>Answer: B", "A"),  # a thought counts as the answer
        ("Answer: A common mistake", "A"),  # and a word as a letter
        ("The answer is B", None),
        ("Answer: E", None),
    ],
)
def test_the_papers_rule(text: str, found: str | None) -> None:
    assert paper_letter(text) == found


def test_both_verdicts_are_in_one_score() -> None:
    score = judge("<think>Answer: A</think>**Answer: (B)**", "B")
    assert (score.value, score.answer) == (1, "B")
    assert score.details == {"paper_rule": 0, "paper_answer": "A"}


@pytest.mark.parametrize("option", "ABCDEFGHIJ")
def test_ten_options(option: str) -> None:
    assert letter(f"The answer is ({option}).", "ABCDEFGHIJ") == option
    assert letter(f"The answer is ({option}).", "ABCD") == (option if option in "ABCD" else None)


@pytest.mark.parametrize(
    "wrap", ["{}", "({})", "**{}**", "**({})**", "[{}]", "${}$", r"\boxed{{{}}}", r"\text{{{}}}", "{}.", "`{}`"]
)
@pytest.mark.parametrize("lead", ["Answer: ", "The answer is ", "the correct answer is: ", "Final answer: option "])
def test_markup_hides_no_letter(lead: str, wrap: str) -> None:
    assert letter(f"Some reasoning about A and D.\n\n{lead}{wrap.format('C')}") == "C"

"""Which part of a text is its answer, and which text has run away."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawbench.scoring.text import answer_of, code_blocks, final_code, is_loop, opens_thought, periods, until


@pytest.mark.parametrize(
    ("text", "opened", "answer"),
    [
        ("plain", False, "plain"),
        ("<think>no</think>yes", False, "yes"),
        ("no</think>yes", True, "yes"),
        ("no</think>yes", False, "yes"),
        ("<think>a</think>b<think>c</think>d", False, "d"),
        ("<think>never closed", False, None),
        ("never closed", True, None),
        ("<think>a</think>b<think>open again", False, None),
        ("<think></think>", False, ""),
    ],
)  # fmt: skip
def test_the_answer_stands_behind_the_last_thought(text: str, opened: bool, answer: str | None) -> None:
    assert answer_of(text, opened) == answer


def test_a_prompt_may_open_a_thought() -> None:
    assert opens_thought("<user>q<assistant><think>\n")
    assert not opens_thought("<user>q<assistant><think>\n\n</think>\n\n")
    assert not opens_thought("<user>q<assistant>")


@pytest.mark.parametrize(
    ("text", "opened", "kept"),
    [
        ("a STOP b", False, "a "),
        ("<think>x STOP y</think>a STOP b", False, "<think>x STOP y</think>a "),
        ("x STOP y", True, "x STOP y"),
        ("x STOP y</think>a STOP b STOP", True, "x STOP y</think>a "),
        ("nothing", False, "nothing"),
    ],
)
def test_stop_strings_count_in_the_answer_alone(text: str, opened: bool, kept: str) -> None:
    assert until(text, ("STOP", "never"), opened) == kept


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("first\n```\na\n```\nthen\n```py\nb\n```\nend", "b\n"),
        ("```python\na\n```\n```\n\n```", "a\n"),
        ("```python\ncut off", "cut off"),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb\n"),
        ("````md\n```python\na\n```\n````", "```python\na\n```\n"),
        ("  ```python\n  a\n  ```", "a\n"),
        ("1. So:\n\n   ```python\n   def f():\n\n       return 1\n   ```\n2. Or", "def f():\n\n    return 1\n"),
        ("\t```\n\ta\n\t\tb\n\t```", "a\n\tb\n"),
        ("  ```\na\n    b", "a\n  b"),
        ("```\n    a\n```", "    a\n"),
        ("no code, `inline` only", None),
        ("```python\n```", None),
        ("x = '```'", None),
    ],
)
def test_the_final_code_block(text: str, code: str | None) -> None:
    assert final_code(text) == code


def test_every_block_in_order() -> None:
    assert code_blocks("```\n1\n```\n```python\n2\n```") == ["1\n", "2\n"]


def paragraph(length: int) -> str:
    return "".join(f"Step {n} follows from what stands above it. " for n in range(length))[:length]


@pytest.mark.parametrize(
    "passage", ["!", "ab ", "the answer is. ", "x" * 30 + "y" * 30, "\n", *map(paragraph, (40, 201, 700, 1999, 2000))]
)
@pytest.mark.parametrize("times", [3, 3.4, 5, 200])
def test_a_repeated_passage_is_a_loop(passage: str, times: float) -> None:
    """Wherever the last of them is cut off; from 120 characters on."""
    repeated = (passage * 201)[: int(len(passage) * times)]
    assert is_loop("It starts well enough. " + repeated) is (len(repeated) >= 120)
    assert not is_loop(repeated + " And so it ends.")


@given(st.text("ab", max_size=30))
def test_the_period_of_every_beginning(text: str) -> None:
    expected = [
        next(period for period in range(1, end + 1) if text[period:end] == text[: end - period])
        for end in range(1, len(text) + 1)
    ]
    assert periods(text) == expected


@pytest.mark.parametrize("length", [60, 300, 1500])
def test_a_passage_said_twice_or_with_a_change_is_no_loop(length: int) -> None:
    passage = paragraph(length)
    assert not is_loop(passage * 2)
    assert not is_loop("".join(f"{n}. {passage}" for n in range(9)))


def test_a_long_text_is_looked_through_at_once() -> None:
    texts = ["a" * 5000 + "b", ("a" * 70 + "b") * 2 + "a" * 100, "ab" * 3000 + "c", "".join(map(str, range(20_000)))]
    begun = time.process_time()
    assert [is_loop(text) for text in texts * 5] == [False] * 20
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short short short",
        "=" * 60,
        " ".join(str(i) for i in range(500)),
        "the end. " * 2 + "But no loop at all: " * 3,
        "\n\n".join(f"Lemma {n}. Let x be at least {n}. Then x + 1 is at least {n + 1}. Done." for n in range(200)),
    ],
)
def test_ordinary_text_is_none(text: str) -> None:
    assert not is_loop(text)

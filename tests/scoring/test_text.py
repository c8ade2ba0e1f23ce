"""Which part of a text is its answer, and which text has run away."""

import pytest

from sawbench.scoring.text import answer_of, code_blocks, final_code, is_loop, opens_thought, until


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
        ("  ```python\n  a\n  ```", "  a\n"),
        ("no code, `inline` only", None),
        ("```python\n```", None),
        ("x = '```'", None),
    ],
)
def test_the_final_code_block(text: str, code: str | None) -> None:
    assert final_code(text) == code


def test_every_block_in_order() -> None:
    assert code_blocks("```\n1\n```\n```python\n2\n```") == ["1\n", "2\n"]


@pytest.mark.parametrize("passage", ["!", "ab ", "the answer is. ", "x" * 30 + "y" * 30, "\n"])
def test_a_repeated_passage_is_a_loop(passage: str) -> None:
    assert is_loop("It starts well enough. " + passage * 200)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short short short",
        "=" * 60,
        " ".join(str(i) for i in range(500)),
        "the end. " * 2 + "But no loop at all: " * 3,
    ],
)
def test_ordinary_text_is_none(text: str) -> None:
    assert not is_loop(text)

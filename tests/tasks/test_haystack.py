"""Generated long text: as long as asked, the needles where they belong, the same from the same seed."""

import random

import pytest

from helpers.stub import StubTokenizer
from sawbench.core.errors import UserError
from sawbench.tasks.haystack import filler, fitted_prompt, hidden_at

NEEDLE = "The pass key is 12345."


def prompt(tokens: int, depth: float = 0.5, seed: int = 0) -> str:
    tokenizer = StubTokenizer()
    ids = fitted_prompt(tokenizer, lambda hay: f"Q {hay} ?", [(depth, NEEDLE)], tokens, random.Random(seed))
    assert len(ids) <= tokens
    return tokenizer.decode(ids)


@pytest.mark.parametrize("tokens", [200, 1000, 8000])
def test_a_prompt_fills_its_length_up_to_a_sentence_or_two(tokens: int) -> None:
    text = prompt(tokens)
    assert len(text) > tokens - 200
    assert text.count(NEEDLE) == 1


def test_the_depth_is_where_the_needle_stands() -> None:
    places = [prompt(8000, depth).index(NEEDLE) / 8000 for depth in (0, 0.25, 0.5, 0.75, 1)]
    assert places == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.03)


def test_needles_keep_the_order_of_their_depths() -> None:
    assert hidden_at(["a", "b"], [(0.5, "X"), (0.5, "Y"), (1, "Z"), (0, "W")]) == "W a X Y b Z"


def test_the_text_follows_from_the_seed_and_holds_nothing_that_is_hidden() -> None:
    assert prompt(1000, seed=1) == prompt(1000, seed=1) != prompt(1000, seed=2)
    sentences = [sentence for sentence, _ in zip(filler(random.Random(0)), range(2000), strict=False)]
    assert not any(character.isdigit() for sentence in sentences for character in sentence)
    assert len(set(sentences)) > 1900  # 8k tokens that repeat one paragraph would be no haystack


def test_a_length_that_cannot_hold_the_question_is_refused() -> None:
    with pytest.raises(UserError, match=r"task\.lengths"):
        prompt(20)

"""Text of any length with sentences hidden in it, made from a seed: long context without a data set.

The filler is composed from word lists, so that 32k tokens of it do not repeat one paragraph, and holds no digit and no
capital word but a sentence's first: whatever a task hides cannot be in it by chance.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sawbench.core.errors import UserError
from sawbench.prompts import encode_prompt

_PARTS = (
    ("The baker", "An old sailor", "Her neighbour", "The gardener", "A quiet clerk", "The ferryman", "Two painters"),
    ("carried", "repaired", "counted", "forgot", "painted", "sold", "borrowed", "polished", "wrapped", "moved", "hid"),
    ("a wooden chair", "the brass lamp", "some dried apples", "an empty basket", "the long rope", "a stack of letters"),
    ("near the harbour", "behind the mill", "under the bridge", "in the market", "beside the orchard", "by the well"),
    (
        "before sunrise",
        "after the rain",
        "while the dogs slept",
        "as the snow fell",
        "during the long summer",
        "at noon",
    ),
    ("and said nothing", "although nobody had asked", "with great care", "for no clear reason", "once more", "in vain"),
)


def filler(generator: random.Random) -> Iterator[str]:
    """Sentences without an end, each ending with a full stop."""
    while True:
        yield " ".join(generator.choice(words) for words in _PARTS) + "."


def hidden_at(sentences: Sequence[str], needles: Sequence[tuple[float, str]]) -> str:
    """``sentences`` as one text with each needle's sentence at its depth: 0 before the first, 1 behind the last.
    Needles that fall between the same two sentences keep their order."""
    parts, in_order = list(sentences), sorted(needles, key=lambda pair: pair[0])
    for depth, needle in reversed(in_order):  # from the end, so that earlier places stay
        parts.insert(round(depth * len(sentences)), needle)
    return " ".join(parts)


def fitted_prompt(
    tokenizer: Any,
    frame: Callable[[str], str],
    needles: Sequence[tuple[float, str]],
    tokens: int,
    generator: random.Random,
) -> tuple[int, ...]:
    """Token ids, at most ``tokens`` and within a few sentences of it, of ``frame(haystack)`` as a chat turn.

    Raises:
        UserError: the frame and the needles alone are longer.
    """

    def encoded(sentences: Sequence[str]) -> tuple[int, ...]:
        return encode_prompt(tokenizer, frame(hidden_at(sentences, needles)))

    ids = bare = encoded([])
    if len(bare) > tokens:
        raise UserError(f"task.lengths: {tokens} prompt tokens do not hold the question itself, which has {len(bare)}")
    source, sentences = filler(generator), list[str]()
    while True:
        each = (len(ids) - len(bare)) / len(sentences) if sentences else 2 * len(tokenizer(next(source))["input_ids"])
        missing = int((tokens - len(ids)) / each)
        if missing < 1:
            break
        sentences += [next(source) for _ in range(missing)]
        ids = encoded(sentences)
    while len(ids) > tokens:
        sentences.pop()
        ids = encoded(sentences)
    return ids

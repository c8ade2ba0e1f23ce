"""Passkey: a number hidden at a set depth of a text of a set length, asked for at its end (Mohtashami and Jaggi 2023).
The text is generated, from filler of our own."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from sawbench.core.engine import Score
from sawbench.core.errors import UserError
from sawbench.tasks.haystack import fitted_prompt
from sawbench.tasks.retrieval import Cell, Probe, Retrieval, check_lengths, first_number, key_of

if TYPE_CHECKING:
    from sawbench.models import ModelPlan


@dataclass(frozen=True, kw_only=True)
class Passkey(Retrieval):
    """Options of ``task=passkey``: those of Retrieval, and:

    Args:
        depths: where the number stands, in percent of the text.
        repeats: numbers for each length and depth.
    """

    name: str = "passkey"
    lengths: Sequence[int] = (1024, 2048, 4096)
    depths: Sequence[float] = (0, 25, 50, 75, 100)
    repeats: int = 1
    max_new_tokens: int = 24

    axes: ClassVar[tuple[str, ...]] = ("length", "depth")

    def check(self, plan: "ModelPlan") -> None:
        """Raises UserError for a length beyond the context, a depth outside 0 to 100, or nothing to ask."""
        check_lengths(plan, self.lengths, self.max_new_tokens)
        if not self.depths or not all(0 <= depth <= 100 for depth in self.depths) or self.repeats < 1:
            raise UserError(
                f"task.depths={list(self.depths)} are percents, 0 to 100; task.repeats={self.repeats} from 1"
            )

    def cells(self) -> Iterator[Cell]:
        for length, depth, repeat in product(self.lengths, self.depths, range(self.repeats)):
            yield {"length": length, "depth": depth, "repeat": repeat}

    def probe(self, cell: Cell, tokenizer: Any, seed: int) -> Probe:
        key = key_of(cell)
        generator = random.Random(f"passkey {seed} {key}")
        number = str(generator.randint(10_000, 99_999))
        needle = f"The pass key is {number}. Remember it: {number} is the pass key."
        room = cell["length"] - self.max_new_tokens
        prompt = fitted_prompt(tokenizer, _frame, [(cell["depth"] / 100, needle)], room, generator)
        return Probe(key, prompt, (number,), cell)

    def verdict(self, text: str, expected: Sequence[str], thought_open: bool) -> Score:
        return first_number(text, expected, thought_open)


def _frame(haystack: str) -> str:
    return (
        "A pass key is hidden in the text below. Find it and remember it; the rest does not matter.\n\n"
        f"{haystack}\n\nWhat is the pass key? Answer with the number alone."
    )

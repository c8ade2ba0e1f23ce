"""Passkey: a number hidden at a set depth of a text of a set length, asked for at its end (Mohtashami and Jaggi 2023).
The text is generated, from filler of our own."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sawbench.core.errors import UserError
from sawbench.core.records import TaskResult
from sawbench.tasks.base import TaskContext
from sawbench.tasks.haystack import fitted_prompt
from sawbench.tasks.retrieval import Probe, ask, check_lengths, first_number, result

if TYPE_CHECKING:
    from sawbench.models import ModelPlan


@dataclass(frozen=True)
class Passkey:
    """Options of ``task=passkey``.

    Args:
        lengths: tokens of prompt and answer together, chat template included.
        depths: where the number stands, in percent of the text.
        repeats: numbers for each length and depth.
        max_new_tokens: budget of an answer.
    """

    name: str = "passkey"
    lengths: Sequence[int] = (1024, 2048, 4096)
    depths: Sequence[float] = (0, 25, 50, 75, 100)
    repeats: int = 1
    max_new_tokens: int = 24

    def check(self, plan: "ModelPlan") -> None:
        """Raises UserError for a length beyond the context, a depth outside 0 to 100, or nothing to ask."""
        check_lengths(plan, self.lengths, self.max_new_tokens)
        if not self.depths or not all(0 <= depth <= 100 for depth in self.depths) or self.repeats < 1:
            raise UserError(
                f"task.depths={list(self.depths)} are percents, 0 to 100; task.repeats={self.repeats} from 1"
            )

    def run(self, ctx: TaskContext) -> TaskResult:
        total = len(self.lengths) * len(self.depths) * self.repeats
        probes = list(ctx.progress(self.probes(ctx.engine.tokenizer, ctx.seed), total, "passkey texts"))
        return result(ask(ctx, probes, self.max_new_tokens, first_number), ("length", "depth"), "passkey")

    def probes(self, tokenizer: Any, seed: int) -> Iterator[Probe]:
        """The grid, each text drawn from (seed, length, depth, repeat) alone."""
        cells = ((le, de, re) for le in self.lengths for de in self.depths for re in range(self.repeats))
        for length, depth, repeat in cells:
            key = f"{length}-{depth:g}-{repeat}"
            generator = random.Random(f"passkey {seed} {key}")
            number = str(generator.randint(10_000, 99_999))
            needle = f"The pass key is {number}. Remember it: {number} is the pass key."
            room = length - self.max_new_tokens
            prompt = fitted_prompt(tokenizer, _frame, [(depth / 100, needle)], room, generator)
            yield Probe(key, prompt, (number,), {"length": length, "depth": depth, "repeat": repeat})


def _frame(haystack: str) -> str:
    return (
        "A pass key is hidden in the text below. Find it and remember it; the rest does not matter.\n\n"
        f"{haystack}\n\nWhat is the pass key? Answer with the number alone."
    )

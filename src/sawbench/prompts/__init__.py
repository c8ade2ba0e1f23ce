"""The prompts that the project ships, and how a prompt meets a tokenizer.

Two disjoint sets of 64, written for sawbench: ``fidelity`` (what methods are compared on) and ``calibration`` (what a
model is asked to write its own calibration text from). Kinds alternate (prose, code, reasoning, multilingual), so the
first n of either set are as diverse as the whole. ``smoke/`` holds two questions in the columns of each of the paper's
benchmarks, written for sawbench too: what ``experiment smoke=true`` asks.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

PromptSet = Literal["fidelity", "calibration"]


@dataclass(frozen=True)
class Prompt:
    id: str
    kind: str
    text: str


def shipped(name: PromptSet) -> tuple[Prompt, ...]:
    """All prompts of a shipped set, in their order."""
    lines = (files(__name__) / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Prompt(**json.loads(line)) for line in lines)


def encode_prompt(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Token ids that ask ``text`` of a model: one user turn where the tokenizer has a chat template, else the text."""
    if getattr(tokenizer, "chat_template", None):
        turns = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    return tuple(tokenizer(text)["input_ids"])

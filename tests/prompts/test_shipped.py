"""The shipped prompts are enough, diverse from the first on, and calibration never sees what fidelity asks."""

import pytest

from helpers.stub import StubTokenizer
from sawbench.prompts import encode_prompt, shipped


@pytest.mark.parametrize("name", ["fidelity", "calibration"])
def test_each_set_has_64_distinct_prompts_of_four_kinds_in_turn(name: str) -> None:
    prompts = shipped(name)  # type: ignore[arg-type]
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == 64
    assert [prompt.kind for prompt in prompts[:8]] == ["prose", "code", "reasoning", "multilingual"] * 2


def test_the_sets_are_disjoint() -> None:
    assert not {p.text for p in shipped("fidelity")} & {p.text for p in shipped("calibration")}


def test_a_chat_template_is_used_where_there_is_one() -> None:
    with_template, without = StubTokenizer("template"), StubTokenizer(None)
    assert with_template.decode(encode_prompt(with_template, "why")) == "<user>why<assistant>"
    assert without.decode(encode_prompt(without, "why")) == "why"

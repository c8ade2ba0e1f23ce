"""Loads: exact lengths, no prompt twice, the same ones for every method; and numbers as people type them."""

import pytest
from omegaconf import OmegaConf

from sawbench.core.errors import UserError
from sawbench.throughput.loads import Load, loads, number


def load(**changed: object) -> Load:
    fields = {"name": "d30_5", "input_tokens": 30, "output_tokens": 5, "concurrency": 2, "requests": 6}
    return Load(**{**fields, **changed})  # type: ignore[arg-type]


def test_prompts_have_exact_lengths_and_none_comes_twice() -> None:
    made = list(load().prompts(vocabulary=100, seed=0))
    assert [len(r.prompt) for r in made] == [30] * 6
    assert len({r.prompt for r in made}) == 6
    assert all(0 <= token < 100 for r in made for token in r.prompt)
    assert all(r.sampling.max_new_tokens == 5 and r.sampling.ignore_eos for r in made)


def test_every_method_gets_the_same_prompts_and_every_seed_others() -> None:
    first, again, other = (list(load().prompts(100, seed)) for seed in (0, 0, 1))
    assert first == again
    assert not {r.prompt for r in first} & {r.prompt for r in other}


def test_a_load_that_the_engine_would_cut_short_is_refused() -> None:
    load().check(max_length=35, max_running=2)
    with pytest.raises(UserError, match="context of 34"):
        load().check(max_length=34, max_running=2)
    with pytest.raises(UserError, match="max_running=1"):
        load().check(max_length=35, max_running=1)
    load(requests=1).check(max_length=35, max_running=1)  # a concurrency that is never reached asks for no row


def test_one_load_for_each_concurrency() -> None:
    config = {"name": "x", "input_tokens": 7, "output_tokens": 3, "concurrency": [1, 4], "requests": None}
    made = loads(OmegaConf.create(config))
    assert [(one.name, one.concurrency, one.requests) for one in made] == [("d7_3", 1, 1), ("d7_3", 4, 4)]
    made = loads(OmegaConf.create({**config, "requests": [2, 9]}))
    assert [one.requests for one in made] == [2, 9]
    with pytest.raises(UserError, match=r"load\.requests"):
        loads(OmegaConf.create({**config, "requests": [2]}))


@pytest.mark.parametrize(
    ("text", "value"),
    [("10M", 10_000_000), ("128k", 128_000), ("1.5G", 1_500_000_000), ("80Gi", 80 * 2**30), (4096, 4096), (2e3, 2000)],
)
def test_numbers(text: object, value: int) -> None:
    assert number(text, "context") == value


@pytest.mark.parametrize("text", ["", "x", "1.2.3k", "-5", "0", "10 Q"])
def test_no_numbers(text: str) -> None:
    with pytest.raises(UserError, match="context="):
        number(text, "context")

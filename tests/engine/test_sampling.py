"""Draws: the right distribution, from the request's own seed and step alone."""

import pytest
import torch

from sawbench.core.engine import Sampling
from sawbench.engine.sampling import Knobs, draw, text_until, uniforms

LOGITS = torch.tensor([0.1, 2.0, -1.0, 1.0, 0.5], dtype=torch.float64)


def drawn(sampling: Sampling, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    u = uniforms(sampling)
    return draw(logits.expand(len(u), -1), Knobs.of([sampling] * len(u), logits.device), u)


def test_temperature_zero_is_argmax() -> None:
    assert drawn(Sampling(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    counts = drawn(Sampling(20_000, temperature, seed=1)).bincount(minlength=5) / 20_000
    assert torch.allclose(counts.double(), (LOGITS / temperature).softmax(-1), atol=0.015)


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    assert set(drawn(Sampling(500, 1.0, top_k=2)).tolist()) == {1, 3}
    assert set(drawn(Sampling(500, 1.0, top_p=1e-9)).tolist()) == {1}
    probabilities = LOGITS.softmax(-1)
    assert set(drawn(Sampling(2000, 1.0, top_p=float(probabilities[1]) + 1e-6)).tolist()) == {1, 3}


def test_a_row_draws_the_same_in_any_batch() -> None:
    batch = [Sampling(1, 0.8, 0.9, 3, seed=s) for s in range(6)]
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    u = torch.cat([uniforms(s) for s in batch])
    whole = draw(logits, Knobs.of(batch, logits.device), u)
    alone = [draw(logits[i : i + 1], Knobs.of(batch[i : i + 1], logits.device), u[i : i + 1]) for i in range(6)]
    assert whole.tolist() == torch.cat(alone).tolist()


def test_seeds_make_the_stream_and_longer_budgets_extend_it() -> None:
    assert torch.equal(uniforms(Sampling(5, seed=3)), uniforms(Sampling(9, seed=3))[:5])
    assert not torch.equal(uniforms(Sampling(5, seed=3)), uniforms(Sampling(5, seed=4)))


def test_text_is_cut_before_the_earliest_stop() -> None:
    assert text_until("abc END def STOP", ("STOP", "END")) == ("abc ", True)
    assert text_until("abc", ("x", "")) == ("abc", False)

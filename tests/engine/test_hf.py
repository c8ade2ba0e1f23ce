"""The engine on transformers.generate: token for token, in any batch, at any chunking, for every method (float64)."""

from dataclasses import replace

import pytest
import torch

from helpers.methods import small_method, synthetic_tensors
from helpers.models import TinyLoaded, prompts, tiny
from sawbench.attention.hf import cache_argument, watching_positions
from sawbench.core.engine import Request, Sampling
from sawbench.core.replay import Replay
from sawbench.engine.hf import HFEngine

PROMPTS = prompts(5, 9, 3, 17)
GREEDY = Sampling(12)


@pytest.fixture(scope="module")
def loaded() -> TinyLoaded:
    return tiny()


def engine(loaded: TinyLoaded, name: str, **options: object) -> HFEngine:
    method = small_method(name)
    return HFEngine(loaded, method, synthetic_tensors(method, loaded.facts), **options)


def answers(made: HFEngine, sampling: Sampling = GREEDY) -> dict[str, tuple[int, ...]]:
    return {c.id: c.tokens for c in made.generate([Request(str(i), p, sampling) for i, p in enumerate(PROMPTS)])}


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "glm4"])
def test_reference_equals_transformers_token_for_token(model_type: str) -> None:
    """Left padding included: transformers runs each prompt alone, the engine all of them in one batch."""
    model = tiny(model_type)
    model.model.set_attn_implementation("sdpa")
    expected = {}
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        out = model.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=127,
            pad_token_id=0,
        )
        expected[str(i)] = tuple(out[0, len(prompt) :].tolist())
    assert answers(engine(model, "reference", batch_size=4)) == expected


def test_a_batch_and_chunks_do_not_change_a_row(method_name: str, loaded: TinyLoaded) -> None:
    """Known fault 14: every row of a padded batch equals the row alone."""
    together = answers(engine(loaded, method_name, batch_size=4))
    assert together == answers(engine(loaded, method_name, batch_size=1))
    chunked = answers(engine(loaded, method_name, batch_size=3, chunk=4))
    assert chunked == answers(engine(loaded, method_name, batch_size=1, chunk=4))
    assert small_method(method_name).stepwise or chunked == together


def test_replay_shows_what_decoding_showed(method_name: str, loaded: TinyLoaded) -> None:
    """Known fault 10, for windows and groups too: replayed in a batch of any lengths, every token of a greedy answer is
    the likeliest, and a row's logits are those of the row alone."""
    made, alone = engine(loaded, method_name, batch_size=4), engine(loaded, method_name, batch_size=1)
    tokens = answers(made)
    items = [Replay(str(i), p, tokens[str(i)][: 12 - 2 * i]) for i, p in enumerate(PROMPTS)]
    for item, together, single in zip(items, made.replay(items), alone.replay(items), strict=True):
        assert tuple(together.argmax(-1).tolist()) == item.answer
        assert torch.allclose(together, single, atol=1e-9)


def test_windows_change_what_a_replay_in_one_chunk_shows(windowed_name: str, loaded: TinyLoaded) -> None:
    """Why they are replayed stepwise: all at once, an answer's tokens meet each other as they end up."""
    made = engine(loaded, windowed_name)
    item = Replay("0", PROMPTS[3], PROMPTS[1])
    (stepwise,) = made.replay([item])
    (at_once,) = made._replay([item], 0, 0)
    assert not torch.allclose(stepwise, at_once, atol=1e-3)
    (score,) = made.loglikelihood([(item.prompt, item.answer)])
    expected = stepwise.log_softmax(-1)[range(9), list(item.answer)].sum()
    assert score.total == pytest.approx(float(expected))


def test_replay_equals_stepwise_replay(tokenwise_name: str, loaded: TinyLoaded) -> None:
    """Known fault 10: prefill, chunked prefill and decode see the same cache."""
    made = engine(loaded, tokenwise_name, batch_size=3)
    items = [Replay(str(i), p, PROMPTS[3][:6]) for i, p in enumerate(PROMPTS)]
    for whole, step in zip(made.replay(items), made.replay(items, chunk=1), strict=True):
        assert whole.shape == (6, 128)
        assert torch.allclose(whole, step, atol=1e-6)


def test_exact_prefill_differs_and_is_said(loaded: TinyLoaded) -> None:
    exact, stored, reference = (
        engine(loaded, name, prefill=prefill)
        for name, prefill in (("int4", "exact"), ("int4", "quantized"), ("reference", "quantized"))
    )
    items = [Replay("0", PROMPTS[3], PROMPTS[0])]
    (a,), (b,), (c,) = (made.replay(items) for made in (exact, stored, reference))
    assert exact.describe()["prefill"] == "exact"
    assert torch.allclose(a[0], c[0])  # predicted by the prompt's last token, which attended to nothing stored
    assert not torch.allclose(a[1:], c[1:], atol=1e-3)
    assert not torch.allclose(a, b, atol=1e-3)
    pair = [(PROMPTS[3], PROMPTS[0])]
    assert exact.loglikelihood(pair)[0].total not in (s.loglikelihood(pair)[0].total for s in (stored, reference))


def test_beam_search_runs_on_the_quantized_cache(loaded: TinyLoaded) -> None:
    """Beams reorder and repeat rows; with K and V kept as computed the beams are transformers' own."""
    ids = torch.tensor([PROMPTS[3]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    loaded.model.set_attn_implementation("sdpa")
    expected = loaded.model.generate(ids, **options, eos_token_id=None, pad_token_id=0)
    for name, same in (("reference", True), ("int4", None), ("kivi4", None)):
        made = engine(loaded, name)
        cache = made.new_cache()
        with watching_positions(loaded.model, cache), torch.inference_mode():
            out = loaded.model.generate(
                ids, **options, eos_token_id=None, pad_token_id=0, **{cache_argument(loaded.model): cache}
            )
        assert out.shape == expected.shape
        assert same is None or torch.equal(out, expected)


def test_sampling_depends_on_the_request_alone(loaded: TinyLoaded) -> None:
    hot = Sampling(12, temperature=1.5, top_p=0.9, top_k=40, seed=7)
    together = answers(engine(loaded, "int4", batch_size=4), hot)
    assert together == answers(engine(loaded, "int4", batch_size=1), hot)
    assert together != answers(engine(loaded, "int4", batch_size=4), Sampling(12, temperature=1.5, seed=8))


def test_budgets_stops_and_end_of_text(loaded: TinyLoaded) -> None:
    made = engine(loaded, "reference", batch_size=4)
    plain = {c.id: c for c in made.generate([Request(str(i), p, Sampling(12)) for i, p in enumerate(PROMPTS)])}
    stop = plain["3"].text[4:6]
    requests = [
        Request("short", PROMPTS[0], Sampling(3)),
        Request("stopped", PROMPTS[3], Sampling(12, stop=(stop,))),
        Request("whole", PROMPTS[1], Sampling(12, ignore_eos=True)),
    ]
    out = {c.id: c for c in made.generate(requests)}
    assert out["short"].tokens == plain["0"].tokens[:3]
    assert out["short"].finish == "length"
    assert out["stopped"].finish == "stop"
    assert out["stopped"].text == plain["3"].text[: plain["3"].text.find(stop)]
    assert len(out["whole"].tokens) == 12


def test_loglikelihood_is_a_sum_over_the_continuation(loaded: TinyLoaded) -> None:
    made = engine(loaded, "reference", batch_size=2)
    answer = answers(made)["1"]
    greedy, other, empty = made.loglikelihood([(PROMPTS[1], answer), (PROMPTS[1], PROMPTS[0]), ((), PROMPTS[0])])
    assert greedy.greedy
    assert not other.greedy
    assert greedy.tokens == len(answer)
    assert empty.total < 0
    assert other.total / other.tokens < greedy.total / greedy.tokens


def test_errors_by_layer_and_head(loaded: TinyLoaded) -> None:
    """Two bits err more than eight, everywhere; the reference not at all."""
    items = [Replay("0", PROMPTS[3], PROMPTS[1])]
    rows = {name: engine(loaded, name).layer_errors(items) for name in ("reference", "int8", "int4")}
    assert [(r.layer, r.head) for r in rows["int4"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for exact, eight, four in zip(rows["reference"], rows["int8"], rows["int4"], strict=True):
        assert exact.key == exact.value == 0
        assert exact.output < 1e-12
        assert 0 < eight.key < four.key
        assert 0 < eight.output < four.output


def test_key_channels_show_an_outlier_and_what_rotation_makes_of_it() -> None:
    """A key bias of 100 in one channel stands out before; BDR spreads it, the split takes it away."""
    outlier = tiny()
    with torch.no_grad():
        for name, parameter in outlier.model.named_parameters():
            if name.endswith("k_proj.bias"):
                parameter.zero_()
                parameter[7] = 100
    facts = replace(
        outlier.facts, key_bias=tuple(100.0 * (torch.arange(64) == 7).unflatten(0, (2, 32)) for _ in range(2))
    )
    outlier = replace(outlier, facts=facts)
    peaks = {}
    for name in ("int4", "bdr", "kbias_bdr"):
        channels = engine(outlier, name).key_channels([Replay("0", PROMPTS[3], PROMPTS[0])])
        assert len(channels) == 2 * 2 * 2 * 32
        peaks[name] = max(c.absmax for c in channels if c.stage == "after")
        assert max(c.absmax for c in channels if c.stage == "before") > 90
    assert peaks["int4"] > 90
    assert peaks["kbias_bdr"] < peaks["bdr"] < peaks["int4"] / 2


def test_non_finite_logits_are_seen(loaded: TinyLoaded) -> None:
    broken = tiny()
    with torch.no_grad():
        broken.model.lm_head.weight[5] = torch.nan
    made = engine(broken, "int4")
    assert not any(c.finite for c in made.generate([Request("0", PROMPTS[0], Sampling(2))]))


def test_the_model_without_a_quantized_cache_is_refused(loaded: TinyLoaded) -> None:
    engine(loaded, "int4")
    with pytest.raises(TypeError, match="QuantizedCache"):
        loaded.model(torch.tensor([PROMPTS[0]]))


def test_stored_bits_are_measured(loaded: TinyLoaded) -> None:
    made = engine(loaded, "int4", batch_size=2)
    list(made.replay([Replay("0", PROMPTS[3], PROMPTS[1])]))
    assert made.cache_report().bits_per_value == 5.0
    assert made.cache_report().tokens == 26

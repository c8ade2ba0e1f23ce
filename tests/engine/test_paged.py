"""The paged engine against engine=hf, token for token in float64: any batch, any chunking, preempted or not."""

import random

import pytest
import torch
from omegaconf import OmegaConf

from helpers.methods import CONFIGS, load_method, synthetic_tensors
from helpers.models import TinyLoaded, prompts, tiny
from sawbench.attention.paged import NaivePages
from sawbench.config import compose
from sawbench.core.engine import Request, Sampling
from sawbench.core.errors import UserError
from sawbench.core.replay import Replay
from sawbench.engine.build import build_engine, check_engine
from sawbench.engine.hf import HFEngine
from sawbench.engine.paged.build import resolved
from sawbench.engine.paged.engine import PagedEngine
from sawbench.engine.paged.rows import Rows
from sawbench.engine.paged.runner import Runner
from sawbench.models import plan_model

PROMPTS = prompts(5, 9, 3, 17, 40, 1)
PAGE = 8


@pytest.fixture(scope="module")
def loaded() -> TinyLoaded:
    return tiny()


def paged(loaded: TinyLoaded, name: str, pages: int = 64, max_running: int = 4, chunk: int = 16) -> PagedEngine:
    method = load_method(name)
    device = torch.device("cpu")
    layers = method.bind(loaded.facts, synthetic_tensors(method, loaded.facts), device)
    cache = NaivePages(layers, loaded.shape, pages, PAGE, torch.float64, device)
    runner = Runner(loaded.model, cache, Rows(max_running, pages, device))
    return PagedEngine(
        loaded, cache, runner, max_running=max_running, chunk=chunk, values_per_token=loaded.shape.values_per_token
    )


def requests() -> list[Request]:
    return [Request(str(i), p, Sampling(12)) for i, p in enumerate(PROMPTS)]


def expected(loaded: TinyLoaded, name: str, asked: list[Request]) -> dict[str, tuple]:
    method = load_method(name)
    made = HFEngine(loaded, method, synthetic_tensors(method, loaded.facts), batch_size=6)
    return {c.id: (c.tokens, c.text, c.finish) for c in made.generate(asked)}


def answers(made: PagedEngine, asked: list[Request]) -> dict[str, tuple]:
    return {c.id: (c.tokens, c.text, c.finish) for c in made.generate(asked)}


def test_every_method_equals_the_transformers_engine(servable_name: str, loaded: TinyLoaded) -> None:
    truth = expected(loaded, servable_name, requests())
    assert answers(paged(loaded, servable_name), requests()) == truth
    assert answers(paged(loaded, servable_name, max_running=1, chunk=5), requests()) == truth


def test_a_method_that_fits_no_pages_is_refused_with_the_reason(method_name: str) -> None:
    """Before anything else happens: no model is needed to say so."""
    method = load_method(method_name)
    config = OmegaConf.merge(OmegaConf.load(CONFIGS.parent / "engine" / "paged.yaml"), {"prefill": "quantized"})
    config.attention = "auto"
    if not method.unservable:
        check_engine(config, method)
        return
    with pytest.raises(UserError, match="pages") as refused:
        check_engine(config, method)
    assert f"cannot serve method={method_name}: {method.unservable}; engine=hf runs it" in str(refused.value)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "glm4"])
def test_other_architectures(model_type: str) -> None:
    other = tiny(model_type)
    truth = expected(other, "bdr", requests())
    assert answers(paged(other, "bdr"), requests()) == truth


@pytest.mark.parametrize("name", ["int4", "kbias_bdr", "kmeans"])
def test_preempted_requests_give_the_tokens_of_an_undisturbed_run(name: str, loaded: TinyLoaded) -> None:
    truth = expected(loaded, name, requests())
    tight = paged(loaded, name, pages=10)
    assert answers(tight, requests()) == truth
    assert tight.scheduler.preemptions > 0
    assert tight.blocks.used == 0


def test_sampling_equals_the_transformers_engine(loaded: TinyLoaded) -> None:
    asked = [Request(str(i), p, Sampling(10, 1.2, 0.9, 30, seed=i)) for i, p in enumerate(PROMPTS)]
    asked[2] = Request("2", PROMPTS[2], Sampling(14))  # a greedy one, longer than any that draws
    truth = expected(loaded, "int4", asked)
    assert answers(paged(loaded, "int4"), asked) == truth
    assert answers(paged(loaded, "int4", pages=10, max_running=3), asked) == truth


def test_stops_budgets_and_end_of_text(loaded: TinyLoaded) -> None:
    plain = expected(loaded, "reference", requests())
    asked = [
        Request("short", PROMPTS[0], Sampling(1)),
        Request("stopped", PROMPTS[3], Sampling(12, stop=(plain["3"][1][4:6],))),
        Request("whole", PROMPTS[1], Sampling(12, ignore_eos=True)),
    ]
    assert answers(paged(loaded, "reference"), asked) == expected(loaded, "reference", asked)


@pytest.mark.parametrize("name", ["int4", "kbias_bdr", "kmeans"])
@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_a_storm_of_random_requests(name: str, count: int, loaded: TinyLoaded) -> None:
    """Known fault 20 in the whole engine: reuse at a full pool, random lengths, arrivals and budgets."""
    draw = random.Random(count)
    lengths = [draw.randint(1, 60) for _ in range(count)]
    asked = [
        Request(str(i), p, Sampling(draw.randint(1, 8), ignore_eos=draw.random() < 0.5))
        for i, p in enumerate(prompts(*lengths, seed=count))
    ]
    truth = expected(loaded, name, asked)
    storm = paged(loaded, name, pages=14, max_running=5, chunk=11)
    assert answers(storm, asked) == truth
    assert storm.blocks.used == 0


def test_replay_and_loglikelihood_equal_the_transformers_engine(loaded: TinyLoaded) -> None:
    method = load_method("kbias_bdr")
    truth = HFEngine(loaded, method, {})
    made = paged(loaded, "kbias_bdr")
    items = [Replay(str(i), p, PROMPTS[3]) for i, p in enumerate(PROMPTS)]
    for a, b in zip(made.replay(items), truth.replay(items), strict=True):
        assert torch.allclose(a, b, atol=1e-8)
    pairs = [(PROMPTS[0], PROMPTS[1]), ((), PROMPTS[2])]
    assert [s.total for s in made.loglikelihood(pairs)] == pytest.approx([s.total for s in truth.loglikelihood(pairs)])
    assert made.blocks.used == 0


def test_bytes_are_pages_times_bytes_a_page(loaded: TinyLoaded) -> None:
    made = paged(loaded, "int4", pages=20)
    allocated = sum(plane.nbytes for layer in made.cache.planes for plane in layer.values())
    assert made.pool_bytes == allocated == 20 * made.cache.page_bytes
    list(made.generate(requests()))
    assert made.cache_report().bits_per_value == 5.0


def build(loaded: TinyLoaded, **options: object) -> PagedEngine:
    shipped = OmegaConf.load(CONFIGS.parent / "engine" / "paged.yaml")
    config = OmegaConf.merge({"prefill": "quantized", "attention": "auto"}, {"engine": shipped})
    config.engine.update({"max_running": 4, "kv_bytes": 100_000, "page_size": 8, **options})
    config.engine.prefill, config.engine.attention = config.prefill, options.get("attention", config.attention)
    return build_engine(config.engine, loaded, load_method("int4"), {})


def test_the_pool_is_sized_from_a_budget(loaded: TinyLoaded) -> None:
    made = build(loaded)
    assert 100_000 - made.cache.page_bytes < made.pool_bytes <= 100_000
    assert answers(made, requests()) == expected(loaded, "int4", requests())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "triton"}, "needs a CUDA device"),
        ({"attention": "flash"}, "auto, naive, triton"),
        ({"kv_bytes": 100}, "at least two are needed"),
        ({"page_size": 12}, "no power of two"),
        ({"max_running": 0}, "is not a whole number from 1 on"),
        ({"chunk": 0}, "is not auto or a whole number from 1 on"),
        ({"graphs": True}, "needs attention=triton"),
    ],
)
def test_options_that_cannot_be_are_said(options: dict[str, object], message: str, loaded: TinyLoaded) -> None:
    with pytest.raises(UserError, match=message):
        build(loaded, **options)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        *(("qwen3-32b", 4096), ("qwen3-8b", 4096), ("qwen3-4b", 8192), ("qwen3-0.6b", 16384), ("glm-4.7", 4096)),
        *(("qwen2.5-coder-1.5b", 16384), ("qwen2.5-coder-0.5b", 16384), ("smollm2-135m", 16384)),
    ],
)
def test_a_chunk_is_larger_where_the_model_is_smaller(name: str, chunk: int) -> None:
    plan = plan_model(compose("run", [f"model={name}", "model.weights=random"]).model)
    auto = {"chunk": "auto", "page_size": 8}
    for engine, device, found in ((auto, "cuda", chunk), (auto, "cpu", 4096), ({"chunk": 24}, "cuda", 24)):
        assert resolved(engine, plan.hf_config, plan.shape, torch.device(device)) == {**engine, "chunk": found}


def test_an_engine_has_the_chunk_that_it_was_given_or_that_its_device_wants(loaded: TinyLoaded) -> None:
    assert build(loaded).chunk == 4096
    assert build(loaded, chunk=24).chunk == 24


def test_what_cannot_fit_even_alone_is_refused(loaded: TinyLoaded) -> None:
    with pytest.raises(UserError, match=r"wants 52 tokens and the KV pool holds 40: raise engine\.kv_bytes"):
        list(paged(loaded, "int4", pages=6).generate(requests()))


def test_a_consumer_that_stops_early_leaves_no_page_behind(loaded: TinyLoaded) -> None:
    made = paged(loaded, "int4")
    stream = made.generate(requests())
    next(stream)
    stream.close()
    assert made.blocks.used == 0

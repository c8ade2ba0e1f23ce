"""Compiled decoder layers: the same tokens in float64, one product for siblings, and a model left as it was."""

import pytest
import torch
from torch._dynamo.utils import counters

from helpers.engines import Compiled
from helpers.methods import load_method, synthetic_tensors
from helpers.models import TinyLoaded, prompts, tiny
from sawbench.attention.paged import NaivePages
from sawbench.core.engine import Request, Sampling
from sawbench.engine.paged.engine import PagedEngine
from sawbench.engine.paged.fuse import Fused
from sawbench.engine.paged.rows import Rows
from sawbench.engine.paged.runner import Runner

ASKED = [Request(str(i), p, Sampling(4, ignore_eos=True)) for i, p in enumerate(prompts(5, 9, 3, 17, 40, 1))]


def answers(loaded: TinyLoaded, runner: type[Runner]) -> dict[str, tuple[int, ...]]:
    method, device = load_method("int4"), torch.device("cpu")
    layers = method.bind(loaded.facts, synthetic_tensors(method, loaded.facts), device)
    cache = NaivePages(layers, loaded.shape, 64, 8, torch.float64, device)
    made = runner(loaded.model, cache, Rows(4, 64, device))
    engine = PagedEngine(loaded, cache, made, max_running=4, chunk=16, values_per_token=1)
    return {c.id: c.tokens for c in engine.generate(ASKED)}


@pytest.mark.parametrize(
    ("model_type", "products"),
    [("qwen3", 4), *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ("qwen2", "llama", "glm4"))],
)
def test_layers_compile_once_and_change_nothing(model_type: str, products: int) -> None:
    loaded = tiny(model_type)
    before = {name: p.clone() for name, p in loaded.model.named_parameters()}
    plain = answers(loaded, Runner)
    torch._dynamo.reset()
    counters.clear()
    assert answers(loaded, Compiled) == plain
    assert counters["stats"]["unique_graphs"] == 6  # norm, rotary; around attention in layer and module
    assert counters["inductor"]["extern_calls"] == products  # q k v, o, gate up, down: once for both layers
    after = dict(loaded.model.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any("forward" in module.__dict__ for module in loaded.model.modules())
    assert answers(loaded, Runner) == plain


def test_merged_weights_are_held_once() -> None:
    model = tiny("qwen3").model
    attention = model.model.layers[0].self_attn
    Fused.of(model)
    q, k = attention.q_proj.weight, attention.k_proj.weight
    assert k.data_ptr() == q.data_ptr() + q.nbytes
    assert Fused.of(model) is Fused.of(model)


@pytest.mark.slow
def test_many_models_of_one_family_all_run_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """torch's own limit is eight for each function, and every size of a model takes one or two."""
    before = torch._dynamo.config.recompile_limit
    for kv_heads in (1, 2, 4):
        for head_dim in (16, 32, 64):
            loaded = tiny("qwen3", kv_heads=kv_heads, head_dim=head_dim)
            assert answers(loaded, Compiled) == answers(loaded, Runner)
    assert "recompile_limit" not in caplog.text
    assert torch._dynamo.config.recompile_limit == before

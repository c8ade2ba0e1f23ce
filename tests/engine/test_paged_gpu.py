"""The paged engine on a GPU, in bf16: CUDA graphs against eager steps, and what a long run must survive."""

import pytest
import torch
from omegaconf import OmegaConf
from torch._dynamo.utils import counters

from helpers.engines import Compiled, calm, paged_engine
from helpers.methods import load_method, synthetic_tensors
from helpers.models import TinyLoaded, prompts
from sawbench.core.engine import Request, Sampling
from sawbench.core.errors import UserError
from sawbench.engine.build import build_engine
from sawbench.engine.paged.engine import PagedEngine
from sawbench.engine.paged.fuse import Fused
from sawbench.engine.paged.graphs import GraphRunner

pytestmark = pytest.mark.gpu

PROMPTS = prompts(5, 150, 33, 257)
ROTATED = ["bdr", "bdr_kv", "hessian", "centre_bdr", "kbias_bdr", "kmeans_bdr"]
SERVED = ["bf16", "int8", "int4", "k8v4", "kmeans", *ROTATED]


@pytest.fixture(scope="module")
def loaded() -> TinyLoaded:
    return calm(torch.bfloat16)


@pytest.mark.parametrize("name", SERVED)
def test_graphs_draw_exactly_what_eager_steps_draw(name: str, loaded: TinyLoaded) -> None:
    """Four prompts in one step, then four rows to the end: every product has the same shape, so every bit is equal."""
    asked = [Request(str(i), p, Sampling(12, ignore_eos=True)) for i, p in enumerate(PROMPTS)]
    made = [paged_engine(loaded, name, "triton", runner=runner) for runner in (Compiled, GraphRunner)]
    eager, graphs = ({c.id: c.tokens for c in each.generate(asked)} for each in made)
    assert graphs == eager
    assert made[1].blocks.used == 0


def test_padded_buckets_sampling_preemption_and_reuse(loaded: TinyLoaded) -> None:
    tight = paged_engine(loaded, "int4", "triton", pages=40, runner=GraphRunner)
    asked = [
        Request(str(i), p, Sampling(5 + i % 7, 0.8 * (i % 2), 0.9, seed=i, ignore_eos=True))
        for i, p in enumerate(PROMPTS * 3)
    ]
    done = {c.id: c for c in tight.generate(asked)}
    assert {i: len(c.tokens) for i, c in done.items()} == {r.id: r.sampling.max_new_tokens for r in asked}
    assert all(c.finite for c in done.values())
    assert tight.blocks.used == 0


def test_no_step_compiles_what_an_earlier_one_has(loaded: TinyLoaded) -> None:
    """Other numbers of prompts, chunks and rows are no reason to compile layers again."""
    made = paged_engine(loaded, "int4", "triton", runner=GraphRunner)
    first, second = (
        [Request(str(i), p, Sampling(4 + i, ignore_eos=True)) for i, p in enumerate(each)]
        for each in (PROMPTS, prompts(40, 7, 90))
    )
    list(made.generate(first))
    compiled = counters["stats"]["unique_graphs"]
    list(made.generate(second))
    list(made.generate(first[:1]))
    assert counters["stats"]["unique_graphs"] == compiled > 0


def test_fused_layers_compute_what_they_replace() -> None:
    made = calm(torch.bfloat16)
    fused, ids = Fused.of(made.model), torch.tensor([PROMPTS[1]], device="cuda")
    assert fused.layers == 2
    made.model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        plain = made.model(ids).logits.float()
        with fused.running():
            compiled = made.model(ids).logits.float()
    assert 0 < float((plain - compiled).norm() / plain.norm()) < 0.02


def build(loaded: TinyLoaded, name: str, **options: object) -> PagedEngine:
    config = {
        "name": "paged",
        "page_size": 16,
        "chunk": 128,
        "max_running": 4,
        "kv_bytes": 20_000_000,
        "gpu_memory": 0.5,
    }
    config |= {"graphs": "auto", "fused": True, "prefill": "quantized", "attention": "auto", **options}
    method = load_method(name)
    return build_engine(OmegaConf.create(config), loaded, method, synthetic_tensors(method, loaded.facts))


def test_the_kernels_are_the_default_and_the_record_says_so(loaded: TinyLoaded) -> None:
    assert build(loaded, "int4").describe()["attention"] == "triton"
    assert build(loaded, "int4_g32").describe()["attention"] == "naive"
    with pytest.raises(UserError, match="attention=naive"):
        build(loaded, "int4_g32", attention="triton")


def test_pool_accounting_to_the_byte(loaded: TinyLoaded) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    made = build(loaded, "int4", graphs=False)
    assert made.pool_bytes == made.cache.pool.nbytes
    assert torch.cuda.memory_allocated() - before >= made.pool_bytes


def test_tensors_on_a_second_gpu() -> None:
    """Known fault 25: the device of the tensors is used, not device 0."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    made = calm(torch.bfloat16)
    made.model.to("cuda:1")
    answers = [c.tokens for c in build(made, "bdr", graphs=False).generate([Request("0", PROMPTS[1], Sampling(4))])]
    assert len(answers) == 1

"""The paged engine on a GPU: kernels against the naive backend, graphs against eager steps."""

import pytest
import torch
from omegaconf import OmegaConf

from helpers.methods import load_method, synthetic_tensors
from helpers.models import TinyLoaded, prompts, tiny
from sawbench.core.engine import Request, Sampling
from sawbench.core.replay import Replay
from sawbench.engine.build import build_engine
from sawbench.engine.paged.engine import PagedEngine

pytestmark = pytest.mark.gpu

PROMPTS = prompts(5, 150, 33, 257, 400, 1)
ROTATED = ["bdr", "bdr_kv", "hessian", "hessian_bdr", "centre_bdr", "kbias_bdr", "kmeans_bdr"]
SERVED = ["bf16", "int8", "int4", "k8v4", "kmeans", *ROTATED]


@pytest.fixture(scope="module")
def loaded() -> TinyLoaded:
    made = tiny(dtype=torch.bfloat16, head_dim=64)
    made.model.to("cuda")
    return made


def paged(loaded: TinyLoaded, name: str, **options: object) -> PagedEngine:
    method = load_method(name)
    config = OmegaConf.create(
        {"name": "paged", "page_size": 16, "chunk": 128, "max_running": 4, "kv_bytes": 20_000_000, "gpu_memory": 0.5}
        | {"graphs": "auto", "prefill": "quantized", "attention": "auto", **options}
    )
    return build_engine(config, loaded, method, synthetic_tensors(method, loaded.facts))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", SERVED)
def test_kernels_agree_with_the_naive_backend(name: str, loaded: TinyLoaded) -> None:
    """Logits of prompts written in chunks, then of single steps: both backends see the same pages."""
    kernels, naive = paged(loaded, name, attention="triton"), paged(loaded, name, attention="naive")
    items = [Replay(str(i), p[: max(1, len(p) - 9)], p[-9:]) for i, p in enumerate(PROMPTS) if len(p) > 9]
    for chunk in (128, 1):
        for a, b in zip(kernels.replay(items[:2], chunk), naive.replay(items[:2], chunk), strict=True):
            assert relative(a, b) < 0.05


@pytest.mark.parametrize("name", SERVED)
def test_graphs_draw_what_eager_steps_draw(name: str, loaded: TinyLoaded) -> None:
    """One bucket, so that matrix products are the same; rows end at different times and are padded."""
    asked = [Request(str(i), p, Sampling(6 + i, ignore_eos=True)) for i, p in enumerate(PROMPTS[:4])]
    graphs, eager = paged(loaded, name, graphs=True), paged(loaded, name, graphs=False)
    a, b = ({c.id: c.tokens for c in made.generate(asked)} for made in (graphs, eager))
    same = sum(x == y for i in a for x, y in zip(a[i], b[i], strict=True))
    assert {i: len(t) for i, t in a.items()} == {i: len(t) for i, t in b.items()}
    assert same / sum(map(len, a.values())) > 0.7  # bf16: a near tie may fall either way, and then the rows part
    assert graphs.blocks.used == 0


def test_graphs_survive_sampling_preemption_and_reuse(loaded: TinyLoaded) -> None:
    tight = paged(loaded, "int4", kv_bytes=600_000)
    asked = [Request(str(i), p, Sampling(8, 0.8, 0.9, seed=i, ignore_eos=True)) for i, p in enumerate(PROMPTS * 3)]
    asked = [Request(str(i), r.prompt, r.sampling) for i, r in enumerate(asked)]
    done = list(tight.generate(asked))
    assert sorted(int(c.id) for c in done) == list(range(len(asked)))
    assert all(len(c.tokens) == 8 and c.finite for c in done)
    assert tight.blocks.used == 0


def test_what_the_kernels_do_not_read_is_served_naively_or_refused(loaded: TinyLoaded) -> None:
    from sawbench.core.errors import UserError

    assert paged(loaded, "int4_g32").cache.name == "naive"
    with pytest.raises(UserError, match="attention=naive"):
        paged(loaded, "int4_g32", attention="triton")


def test_pool_accounting_to_the_byte(loaded: TinyLoaded) -> None:
    before = torch.cuda.memory_allocated()
    made = paged(loaded, "int4", graphs=False)
    assert made.pool_bytes == made.cache.pool.nbytes
    assert torch.cuda.memory_allocated() - before >= made.pool_bytes

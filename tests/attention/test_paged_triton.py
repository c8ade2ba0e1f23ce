"""A bound method through the kernels against the naive backend: the same pages, the same tokens, the same logits."""

import pytest
import torch

from helpers.engines import calm, paged_engine
from helpers.methods import bind, load_method, make_facts
from helpers.models import TinyLoaded, prompts
from sawbench.attention.paged_triton import Unservable, page_layout
from sawbench.core.engine import Request, Sampling
from sawbench.core.replay import Replay

FAST = ["bf16", "int4", "kbias_bdr"]
REST = ["int8", "bdr", "bdr_kv", "k8v4", "centre_bdr", "hessian", "hessian_bdr", "kmeans", "kmeans_bdr"]
PROMPT = prompts(20)[0]


@pytest.fixture(scope="module")
def loaded() -> TinyLoaded:
    return calm(torch.float16)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def test_kernels_agree_with_the_naive_backend(name: str, loaded: TinyLoaded) -> None:
    """A prompt in one chunk (prefill), then the same tokens one at a time through decode."""
    kernels, naive = (paged_engine(loaded, name, backend, pages=8) for backend in ("triton", "naive"))
    item = [Replay("0", PROMPT[:-4], PROMPT[-4:])]
    (a,), (b,) = kernels.replay(item), naive.replay(item)
    assert float((a - b).norm() / b.norm()) < 0.03  # half a percent is usual; a flipped code costs more
    other = PROMPT[10:15]  # no method has two tokens of nearly one score here: the first five of PROMPT have, for int8
    asked = [Request("0", PROMPT, Sampling(3, ignore_eos=True)), Request("1", other, Sampling(2, ignore_eos=True))]
    first, second = ({c.id: c.tokens for c in made.generate(asked)} for made in (kernels, naive))
    assert first == second
    assert kernels.blocks.used == 0


@pytest.mark.parametrize("name", ["int4", "kmeans", "k8v4", "bf16"])
def test_pages_hold_what_the_method_says_to_the_byte(name: str, loaded: TinyLoaded) -> None:
    """Bytes a token by plane equal those of the method's own encoding; the pool is pages times bytes a page."""
    kernels, naive = (paged_engine(loaded, name, backend, pages=8) for backend in ("triton", "naive"))
    assert sum(kernels.cache.plane_bytes().values()) == sum(naive.cache.plane_bytes().values())
    assert kernels.pool_bytes == kernels.cache.pool.nbytes == 8 * kernels.cache.page_bytes


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("int4", {"bits": 3}, "not 3 bits"),
        ("int4", {"storage": "fp32"}, "storage fp32"),
        ("int4_g32", {}, "group 32"),
        ("reference", {}, "kept in compute"),
    ],
)
def test_what_the_kernels_do_not_read_is_said(name: str, options: dict[str, object], message: str) -> None:
    facts = make_facts(head_dim=64)
    with pytest.raises(Unservable, match=message):
        page_layout(bind(load_method(name, **options), facts)[0], facts.shape, 16, torch.float16)

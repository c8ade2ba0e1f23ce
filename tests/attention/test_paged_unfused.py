"""Rotation apart from the kernels: the same mathematics as fused, and refused where it cannot be apart."""

import pytest
import torch

from helpers.engines import calm, paged_engine
from helpers.methods import load_method, make_facts, synthetic_tensors
from helpers.models import prompts
from sawbench.attention.paged_triton import Unservable, page_layout
from sawbench.attention.paged_unfused import UnfusedPages
from sawbench.core.replay import Replay

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ["hessian", "kbias_bdr", "kmeans_bdr", "centre_bdr"])
def test_what_cannot_stand_apart_is_refused(method: str) -> None:
    facts = make_facts()
    layers = load_method(method).bind(facts, synthetic_tensors(load_method(method), facts), CPU)
    layout = page_layout(layers[0], facts.shape, 16, torch.bfloat16)
    with pytest.raises(Unservable, match=r"engine\.fused=false"):
        UnfusedPages(layers, layout, pages=2, scale=0.1, positions=64)


@pytest.mark.parametrize("method", ["bdr", pytest.param("bdr_kv", marks=pytest.mark.slow)])
def test_unfused_gives_the_logits_of_fused(method: str) -> None:
    """In float16: keys rounded once more, between rotation and store, flip few of their codes."""
    loaded = calm(torch.float16)
    (prompt,) = prompts(20)
    item = [Replay("x", prompt[:-4], prompt[-4:])]
    (fused,), (unfused,) = (paged_engine(loaded, method, backend).replay(item) for backend in ("triton", "unfused"))
    assert 0 < float((fused - unfused).norm() / fused.norm()) < 0.05

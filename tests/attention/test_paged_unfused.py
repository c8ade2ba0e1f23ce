"""Rotation apart from the kernels: the same mathematics as fused, and refused where it cannot be apart."""

import pytest
import torch
from omegaconf import OmegaConf

from helpers.methods import load_method, make_facts, synthetic_tensors
from helpers.models import prompts, tiny
from sawbench.attention.paged_triton import Unservable, page_layout
from sawbench.attention.paged_unfused import UnfusedPages
from sawbench.core.replay import Replay
from sawbench.engine.build import build_engine

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ["hessian", "kbias_bdr", "kmeans_bdr", "centre_bdr"])
def test_what_cannot_stand_apart_is_refused(method: str) -> None:
    facts = make_facts()
    layers = load_method(method).bind(facts, synthetic_tensors(load_method(method), facts), CPU)
    layout = page_layout(layers[0], facts.shape, 16, torch.bfloat16)
    with pytest.raises(Unservable, match=r"engine\.fused=false"):
        UnfusedPages(layers, layout, pages=2, scale=0.1, positions=64)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["bdr", "bdr_kv", "int4"])
def test_unfused_gives_the_logits_of_fused(method: str) -> None:
    loaded = tiny(dtype=torch.bfloat16, head_dim=64)
    loaded.model.to("cuda")
    options = {"name": "paged", "page_size": 16, "chunk": 128, "max_running": 4, "kv_bytes": 20_000_000}
    options |= {"gpu_memory": 0.5, "graphs": False, "prefill": "quantized", "attention": "auto"}
    (prompt,) = prompts(200)
    item = Replay("x", prompt[:190], prompt[190:])
    fused, unfused = (
        next(
            iter(
                build_engine(OmegaConf.create({**options, "fused": on}), loaded, load_method(method), {}).replay([item])
            )
        )
        for on in (True, False)
    )
    assert float((fused - unfused).norm() / fused.norm()) < 0.05

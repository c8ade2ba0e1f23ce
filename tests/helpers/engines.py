"""Paged engines over a tiny model in half precision: kernels (interpreted without a GPU) and the naive backend."""

import torch

from helpers.methods import load_method, synthetic_tensors
from helpers.models import TinyLoaded, tiny
from helpers.pages import DEVICE
from sawbench.attention.paged import NaivePages, PagedStep
from sawbench.attention.paged_triton import TritonPages
from sawbench.attention.paged_unfused import UnfusedPages
from sawbench.engine.paged.engine import PagedEngine
from sawbench.engine.paged.fuse import Fused
from sawbench.engine.paged.rows import Rows
from sawbench.engine.paged.runner import Runner

KERNELS = {"triton": TritonPages, "unfused": UnfusedPages}


class Compiled(Runner):
    """An eager runner over compiled layers."""

    def forward(self, ids: torch.Tensor, paged: PagedStep, places: torch.Tensor) -> torch.Tensor:
        with Fused.of(self.model).running():
            return super().forward(ids, paged, places)


CALM = 0.4
"""Of the tiny model's weights: so tame that half-precision rounding does not cascade through its two layers."""


def calm(dtype: torch.dtype) -> TinyLoaded:
    """The tiny Qwen2 with heads of 64 dimensions and a key bias, on the test device."""
    made = tiny(dtype=dtype, head_dim=64, bias=2.0)
    with torch.no_grad():
        for parameter in made.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(CALM)
    made.model.to(DEVICE)
    return made


def paged_engine(
    loaded: TinyLoaded, name: str, backend: str, pages: int = 64, runner: type[Runner] = Runner
) -> PagedEngine:
    """An engine of 16-token pages with method ``name``; ``backend`` is naive, triton or unfused."""
    method, device = load_method(name), torch.device(DEVICE)
    layers = method.bind(loaded.facts, synthetic_tensors(method, loaded.facts), device)
    if backend in KERNELS:
        cache = KERNELS[backend].sized(lambda cost: pages, layers, loaded, 16, 1024)
    else:
        cache = NaivePages(layers, loaded.shape, pages, 16, next(loaded.model.parameters()).dtype, device)
    rows = Rows(4, pages, device)
    return PagedEngine(
        loaded, cache, runner(loaded.model, cache, rows), max_running=4, chunk=4096, values_per_token=1
    )  # fmt: skip

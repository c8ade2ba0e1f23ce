"""Other people's decode attention on the same shapes: torch SDPA by backend, and optional packages."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sawbench.throughput.kernel_cases import Case, KernelShape, Prepared, relative_error

BACKENDS = {"sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}
PACKAGES = {"flashinfer_bf16": "flashinfer", "fbgemm_int4": "fbgemm_gpu"}


def peer_cases(shape: KernelShape) -> Iterator[Case]:
    """BF16 over contiguous K and V [B, H_kv, T, D], all of one length; then what ``pip install .[bench]`` brings."""
    size = 2 * 2 * shape.tokens * shape.kv_heads * shape.head_dim
    for name, backend in BACKENDS.items():

        def prepare(device: torch.device, backend: SDPBackend = backend) -> Prepared:
            return _prepare_sdpa(backend, shape, size, device)

        yield Case("paged_decode", name, shape, size, prepare, baseline=True, note="contiguous, equal lengths")


def _prepare_sdpa(backend: SDPBackend, shape: KernelShape, size: int, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    sets = shape.sets(size)
    kv = (sets, shape.batch, shape.kv_heads, shape.context, shape.head_dim)
    key = torch.empty(kv, dtype=torch.bfloat16, device=device).normal_()
    value = torch.empty(kv, dtype=torch.bfloat16, device=device).normal_()
    q = torch.randn(sets, shape.batch, shape.query_heads, 1, shape.head_dim, dtype=torch.bfloat16, device=device)

    def step(i: int) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q[i], key[i], value[i], enable_gqa=True)

    def error() -> float:
        wide = [x[0, :1].to(torch.float64) for x in (q, key, value)]
        with sdpa_kernel(SDPBackend.MATH):
            reference = scaled_dot_product_attention(*wide, enable_gqa=True)
        return relative_error(step(0)[:1], reference)

    steps: tuple[Callable[[], Tensor], ...] = tuple(lambda i=i: step(i) for i in range(sets))  # type: ignore[misc]
    return Prepared(steps, error)

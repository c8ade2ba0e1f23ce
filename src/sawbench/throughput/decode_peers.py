"""Other people's decode attention on the same shapes: torch SDPA by backend, and optional packages."""

import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sawbench.throughput.kernel_cases import Case, KernelShape, Prepared, relative_error

BACKENDS = {"sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}
ABSENT = "skipped: not installed (pip install .[bench])"
FBGEMM_CONTEXT, FBGEMM_HEADS = 16384, 8
"""What fbgemm's kernel was built for."""
FBGEMM_SPLITS = (1, 2, 4, 8, 16, 32, 64)
INT4_BYTES = 4
"""Scale and shift, fp16, before the codes of a token and head in fbgemm's INT4 cache."""


def peer_cases(shape: KernelShape) -> Iterator[Case]:
    """BF16 over contiguous K and V, all of one length; then what ``pip install .[bench]`` brings."""
    size = 2 * 2 * shape.tokens * shape.kv_heads * shape.head_dim
    note = "contiguous, equal lengths"
    for name, backend in BACKENDS.items():
        prepare = partial(_prepare_sdpa, backend, shape, size)
        yield Case("paged_decode", name, shape, size, prepare, baseline=True, note=note)
    absent = "" if find_spec("flashinfer") else ABSENT
    prepare = partial(_prepare_flashinfer, shape, size)
    yield Case(
        "paged_decode", "flashinfer_bf16", shape, size, prepare, baseline=True, skip=absent, note="equal lengths"
    )
    absent = "" if find_spec("fbgemm_gpu") else ABSENT
    if not absent and (shape.head_dim != 128 or shape.context > FBGEMM_CONTEXT or shape.group > FBGEMM_HEADS):
        absent = (
            f"skipped: takes head_dim 128, {FBGEMM_CONTEXT} tokens and {FBGEMM_HEADS} query heads a KV head at most"
        )
    packed = 2 * shape.tokens * shape.kv_heads * (shape.head_dim // 2 + INT4_BYTES)
    yield Case(
        "paged_decode", "fbgemm_int4", shape, packed, partial(_prepare_fbgemm, shape, packed), skip=absent, note=note
    )


def _queries(shape: KernelShape, sets: int, device: torch.device) -> Tensor:
    return torch.randn(sets, shape.batch, shape.query_heads, shape.head_dim, dtype=torch.bfloat16, device=device)


def _prepared(step: Callable[[int], Tensor], sets: int, q: Tensor, key: Tensor, value: Tensor) -> Prepared:
    """``key``, ``value`` [T, H_kv, D]: what the first sequence of the first set attends to."""

    def error() -> float:
        given = (q[0, 0, :, None], key.transpose(0, 1), value.transpose(0, 1))
        query, keys, values = (x.to(torch.float64)[None] for x in given)
        with sdpa_kernel(SDPBackend.MATH):
            reference = scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        return relative_error(step(0)[0].flatten(), reference.flatten())

    return Prepared(tuple(partial(step, i) for i in range(sets)), error)


def _prepare_sdpa(backend: SDPBackend, shape: KernelShape, size: int, device: torch.device) -> Prepared:
    torch.manual_seed(0)
    sets = shape.sets(size)
    kv = (sets, shape.batch, shape.kv_heads, shape.context, shape.head_dim)
    key = torch.empty(kv, dtype=torch.bfloat16, device=device).normal_()
    value = torch.empty(kv, dtype=torch.bfloat16, device=device).normal_()
    q = _queries(shape, sets, device)

    def step(i: int) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q[i, :, :, None], key[i], value[i], enable_gqa=True)

    return _prepared(step, sets, q, key[0, 0].transpose(0, 1), value[0, 0].transpose(0, 1))


def _prepare_flashinfer(shape: KernelShape, size: int, device: torch.device) -> Prepared:
    import flashinfer

    torch.manual_seed(0)
    sets, count = shape.sets(size), -(-shape.context // shape.page_size)
    pool = (sets * shape.batch * count, 2, shape.kv_heads, shape.page_size, shape.head_dim)
    cache = torch.empty(pool, dtype=torch.bfloat16, device=device).normal_()
    order = torch.randperm(len(cache), device=device).to(torch.int32).view(sets, shape.batch, count)
    q = _queries(shape, sets, device)
    first = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * count
    last = torch.full((shape.batch,), (shape.context - 1) % shape.page_size + 1, dtype=torch.int32, device=device)
    layers: list[Any] = []
    for i in range(sets):
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
        layers.append(flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True))
        heads = (shape.query_heads, shape.kv_heads, shape.head_dim, shape.page_size)
        layers[i].plan(first, order[i].flatten(), last, *heads, q_data_type=q.dtype, kv_data_type=q.dtype)

    def step(i: int) -> Tensor:
        return layers[i].run(q[i], cache)

    key, value = (cache[order[0, 0].long(), s].transpose(1, 2).flatten(0, 1)[: shape.context] for s in (0, 1))
    return _prepared(step, sets, q, key, value)


def _prepare_fbgemm(shape: KernelShape, size: int, device: torch.device) -> Prepared:
    """Its cache is [B, T, 1, 4 + D/2] bytes: fp16 scale and shift, then pairs of neighbouring dims, low first. It takes
    one KV head, so that ours come as sequences of their own."""
    import fbgemm_gpu.experimental.gen_ai  # noqa: F401  registers the op

    torch.manual_seed(0)
    sets = shape.sets(size)
    rows = shape.batch * shape.kv_heads
    cache = torch.empty(
        2, sets, rows, shape.context, 1, INT4_BYTES + shape.head_dim // 2, dtype=torch.uint8, device=device
    )
    cache.random_()
    pair = cache[..., :INT4_BYTES].view(torch.float16)
    pair[..., 0].uniform_(0.05, 0.25)
    pair[..., 1] = -7.5 * pair[..., 0]
    q = _queries(shape, sets, device)
    positions = torch.full((rows,), shape.context - 1, dtype=torch.int32, device=device)

    def run(i: int, splits: int) -> Tensor:
        query = q[i].view(rows, 1, shape.group, shape.head_dim)
        scale = shape.head_dim**-0.5
        out = torch.ops.fbgemm.gqa_attn_splitk(query, cache[0, i], cache[1, i], positions, scale, splits, 1, True, 2)
        return out[0].view(q[i].shape)

    splits = _fastest(FBGEMM_SPLITS, partial(run, 0))

    def step(i: int) -> Tensor:
        return run(i, splits)

    key, value = (_values(side[0, : shape.kv_heads, :, 0]).transpose(0, 1) for side in cache)
    return _prepared(step, sets, q, key, value)


def _fastest(choices: Sequence[int], run: Callable[[int], object]) -> int:
    """What a peer leaves to its caller is chosen as its caller would: of those that run, the one that takes least.

    Raises:
        RuntimeError: none runs; the last one's reason.
    """
    times: dict[int, float] = {}
    for choice in choices:
        try:
            run(choice)
            times[choice] = min(timeit.repeat(partial(_finished, run, choice), number=1, repeat=3))
        except RuntimeError as error:
            reason = error
    if not times:
        raise reason
    return min(times, key=times.__getitem__)


def _finished(run: Callable[[int], object], choice: int) -> None:
    run(choice)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _values(rows: Tensor) -> Tensor:
    """[..., 4 + D/2] bytes to float64 [..., D]."""
    scale, shift = rows[..., :INT4_BYTES].contiguous().view(torch.float16).to(torch.float64).split(1, -1)
    codes = rows[..., INT4_BYTES:]
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2) * scale + shift

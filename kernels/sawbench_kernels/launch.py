"""Checks and views that the wrappers of the writing kernels share."""

import torch
from torch import Tensor

from sawbench_kernels.pages import PageLayout
from sawbench_kernels.quantize_store.spec import SideSpec, StoreSpec

DTYPES = (torch.float16, torch.bfloat16)


def tile(lanes: int, dense: bool) -> tuple[int, int]:
    """(warps, tokens) of a program whose threads hold whole heads, ``lanes`` of them one.

    One warp: nothing crosses warps, and a short launch spreads over more multiprocessors. Four where a dense rotation
    is read once for all tokens of the program.
    """
    warps = 4 if dense else 1
    return warps, 32 // lanes * warps


def words(x: Tensor) -> Tensor:
    """``x`` as int32 words, sharing its memory."""
    return x.view(torch.int32)


def legal_orders(head_dim: int) -> list[int]:
    """Hadamard block orders that the kernels take; 1 is none."""
    return [1, *(order for order in (16, 32, 64, 128, 256) if head_dim % order == 0)]


def check_sides(spec: StoreSpec) -> None:
    """Raises ValueError where ``spec`` asks for what the kernels do not do."""
    layout = spec.layout
    if layout.head_dim % 32 or not 32 <= layout.head_dim <= 256:
        raise ValueError(f"head_dim={layout.head_dim} is no multiple of 32 from 32 to 256")
    for name, side in (("key", spec.key), ("value", spec.value)):
        _check_rotation(name, side, layout)
        _check_codebook(name, side, getattr(layout, f"{name}_centroids"), layout)


def _check_rotation(name: str, side: SideSpec, layout: PageLayout) -> None:
    dim, rotation = layout.head_dim, side.rotation
    if isinstance(rotation, int):
        legal = legal_orders(dim)
        if rotation not in legal:
            raise ValueError(f"{name} rotation of order {rotation} for head_dim {dim} is not one of {legal}")
    elif tuple(rotation.shape) not in ((dim, dim), (layout.kv_heads, dim, dim)):
        raise ValueError(f"{name} rotation {tuple(rotation.shape)} is neither [D, D] nor [H_kv, D, D]")
    elif dim < 64:
        raise ValueError(f"a dense {name} rotation needs a head_dim of at least 64, not {dim}")


def _check_codebook(name: str, side: SideSpec, centroids: int, layout: PageLayout) -> None:
    if side.codebook is None:
        if centroids:
            raise ValueError(f"the layout stores {centroids} {name} centroids, but the spec has no codebook")
        return
    if tuple(side.codebook.shape) != (layout.kv_heads, centroids or 1, layout.head_dim):
        want = f"[{layout.kv_heads}, {centroids or 1}, {layout.head_dim}]"
        raise ValueError(f"{name} codebook {tuple(side.codebook.shape)} is not {want}")


def check_vectors(name: str, x: Tensor) -> None:
    """Raises ValueError unless every vector of ``x`` [..., D] is contiguous, of 16-bit floats, a multiple of 16 bytes
    from the next."""
    if x.dtype not in DTYPES:
        raise ValueError(f"{name} must be float16 or bfloat16, not {x.dtype}")
    if x.stride(-1) != 1 or any(s % 8 for s in x.stride()[:-1]):
        raise ValueError(f"{name} with strides {x.stride()}: vectors must be contiguous and start on 16 bytes")


def check_aligned(name: str, x: Tensor) -> None:
    """Raises ValueError unless the first vector starts on 16 bytes (inside an op: torch.compile cannot trace it)."""
    if x.storage_offset() * x.itemsize % 16:
        raise ValueError(f"{name} starts {x.storage_offset()} values into its storage: vectors must start on 16 bytes")


def check_rows(key: Tensor, value: Tensor, slots: Tensor, layout: PageLayout) -> None:
    """Raises ValueError unless K, V [T, H_kv, D] and slots [T] fit the layout and the kernel."""
    for name, x in (("key", key), ("value", value)):
        check_vectors(name, x)
        if x.shape[1:] != (layout.kv_heads, layout.head_dim) or x.shape != key.shape or x.dtype != key.dtype:
            want = f"[T, {layout.kv_heads}, {layout.head_dim}]"
            raise ValueError(f"{name} {tuple(x.shape)} {x.dtype} is not {want} like key")
    if 16 in (layout.key_bits, layout.value_bits) and key.dtype != layout.dtype:
        raise ValueError(f"16-bit pages hold {layout.dtype}, key and value are {key.dtype}")
    if slots.dtype != torch.int64 or slots.shape != key.shape[:1] or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int64 [{len(key)}], not {slots.dtype} {tuple(slots.shape)}")
    if len({t.device for t in (key, value, slots)}) > 1:
        raise ValueError("key, value and slots lie on several devices")

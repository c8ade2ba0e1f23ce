"""What the kernel benchmark measures: one case is one kernel at one shape, with its bytes and its own check.

A family is a function from a :class:`KernelShape` to cases; :data:`sawbench.throughput.kernel_bench.FAMILIES` lists
them. A case builds its inputs only when its turn comes, and they are dropped after it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sawbench_kernels.key_bias import Rotary, split_bias
from sawbench_kernels.paged_decode.naive import KeyBias

ROTATION_BYTES = 240_000_000
"""Inputs of one case sum to at least this, several times an L2, so that no kernel is timed out of a cache."""
PEERS = ("sdpa_", "flashinfer_", "fbgemm_")
"""How the names of other people's kernels begin."""


@dataclass(frozen=True)
class KernelShape:
    """``batch`` sequences of ``context`` tokens on average (paged_decode), or chunks of so many (other ops)."""

    batch: int
    context: int
    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 128

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.query_heads // self.kv_heads

    def sets(self, bytes_each: int) -> int:
        """Copies of an input of ``bytes_each`` that make :data:`ROTATION_BYTES`."""
        return max(1, -(-ROTATION_BYTES // max(bytes_each, 1)))


@dataclass(frozen=True)
class Prepared:
    """Inputs on the device: ``steps[i]()`` runs the kernel once on the i-th input set, and returns its output.

    ``error()`` is the relative error of the kernel on its own inputs against the specification (0 for exact codes);
    above ``tolerance`` the kernel is wrong, and no time is printed.
    """

    steps: tuple[Callable[[], Any], ...]
    error: Callable[[], float]
    tolerance: float = 5e-3


@dataclass(frozen=True)
class Case:
    """``bytes`` is what a step must move, read plus written. ``skip``: a reason not to run. ``baseline``: a BF16 peer
    of its family, against the best of which the others of the same shape are put; ``in_turn``: replay by replay, since
    work that is bound by arithmetic lowers the card's clock, and not for all alike."""

    family: str
    kernel: str
    shape: KernelShape
    bytes: int
    prepare: Callable[[torch.device], Prepared]
    baseline: bool = False
    in_turn: bool = False
    footprint: int = 0
    skip: str = ""
    note: str = ""

    @property
    def memory(self) -> int:
        """Bytes of device memory that the case takes, about."""
        return max(self.footprint, self.bytes * self.shape.sets(self.bytes))


Family = Callable[[KernelShape], Iterator[Case]]


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """``|out - reference| / |reference|`` over all elements, in float64; NaN counts as infinite."""
    wide = reference.to(torch.float64)
    error = float((out.to(torch.float64) - wide).norm() / wide.norm())
    return error if error == error else float("inf")


def outlier_bias(heads: int, dim: int, pairs: int | None) -> KeyBias:
    """A key bias of which eight rotary pairs of every head stand out, as in the Qwen2 family's worst layers; the
    split covers ``pairs`` of them (None: all)."""
    half = torch.arange(dim // 2)
    bias = torch.randn(heads, dim, generator=torch.Generator().manual_seed(0))
    bias[:, dim // 2 - 8 : dim // 2] *= 60
    rotary = Rotary(torch.stack((half, half + dim // 2), -1), 1e6 ** (-half.to(torch.float64) / (dim // 2)), 1.0)
    return KeyBias(split_bias(bias, rotary, pairs), rotary)

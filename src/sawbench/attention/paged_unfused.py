"""Rotations as launches of their own, before the store and around attention: what fusing them is measured against."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sawbench.attention.paged import PagedStep
from sawbench.attention.paged_triton import TritonPages, Unservable
from sawbench.methods.method import BoundLayer, BoundSide
from sawbench.methods.offsets import NoOffset
from sawbench.methods.transforms import Identity
from sawbench_kernels.hadamard.op import hadamard
from sawbench_kernels.pages import PageLayout


class UnfusedPages(TritonPages):
    """Block-Hadamard methods as the paper's unfused variant runs them: q and k (and v) are turned by a kernel that
    reads and writes them, then stored and read by kernels that know no rotation; the output is turned back.

    Raises:
        Unservable: a dense rotation, or an offset, which would have to be subtracted before the turn.
    """

    def __init__(
        self, layers: Sequence[BoundLayer], layout: PageLayout, pages: int, scale: float, positions: int
    ) -> None:
        self.orders = [(_order(layer.key), _order(layer.value)) for layer in layers]
        plain = [BoundLayer(_unrotated(layer.key), _unrotated(layer.value)) for layer in layers]
        super().__init__(plain, layout, pages, scale, positions)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, step: PagedStep) -> Tensor:
        k, v = self.orders[layer]
        turned = super().attend(layer, _turn(query, k), _turn(key, k), _turn(value, v), scale, step)
        return _turn(turned, v)


def _order(side: BoundSide) -> int:
    rotation = side.transform.rotation
    if not isinstance(rotation, int) or not isinstance(side.offset, NoOffset):
        raise Unservable("engine.fused=false is for block-Hadamard rotations without an offset: bdr, bdr_kv, bdr_k8v4")
    return rotation


def _unrotated(side: BoundSide) -> BoundSide:
    return replace(side, transform=Identity())


def _turn(x: Tensor, order: int) -> Tensor:
    """x [T, H, D] times blocks of ``order``; its own inverse."""
    return x if order == 1 else hadamard(x.contiguous(), order)

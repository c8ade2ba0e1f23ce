"""What quantize_store does to K and V of one layer before their bytes lie in pages."""

from dataclasses import dataclass, field

from torch import Tensor

from sawbench_kernels.paged_decode.naive import KeyBias, Rotation
from sawbench_kernels.pages import PageLayout


@dataclass(frozen=True, eq=False)
class SideSpec:
    """One side, K or V: stored as ``(x - codebook[index]) rotation``.

    ``codebook`` float [H_kv, C, D]: centroids in the space of x. A static mean per channel is a codebook of one
    centroid, for which no index is stored (the layout counts no centroids).
    """

    rotation: Rotation = 1
    codebook: Tensor | None = None


@dataclass(frozen=True, eq=False)
class StoreSpec:
    """Both sides; ``key_bias`` is the part of the key bias that never enters the pages, ``R_j b`` at position j."""

    layout: PageLayout
    key: SideSpec = field(default_factory=SideSpec)
    value: SideSpec = field(default_factory=SideSpec)
    key_bias: KeyBias | None = None

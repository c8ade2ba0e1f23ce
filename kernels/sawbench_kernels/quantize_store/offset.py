"""What a token's vector is moved by before it is rotated: a centroid, and the key bias at its position."""

import triton
import triton.language as tl


@triton.jit
def offset(
    x, dim, head, centroid, place, mask, CODEBOOK, OWN, CROSS, COLUMN, COS, SIN,
    D: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The offset at dimensions ``dim`` [M] of vectors of ``head``: (centroid, bias), each float32 like ``x`` or 0.

    ``centroid`` int64 [ROWS]: row of CODEBOOK [H * C, D]. ``place`` int64 [ROWS]: row of COS and SIN [positions,
    PAIRS]. The bias at dimension d is ``OWN[d] cos + CROSS[d] sin`` at column COLUMN[d], a negative column being a
    dimension that does not turn (cos 1, sin 0). Only dimensions whose bias is not zero read the tables.
    """
    middle = tl.zeros_like(x)
    turned = tl.zeros_like(x)
    if CODEBOOK is not None:
        middle = tl.load(CODEBOOK + centroid[:, None] * D + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    if OWN is not None:
        inside = dim < D
        own = tl.load(OWN + head * D + dim, mask=inside, other=0.0)
        cross = tl.load(CROSS + head * D + dim, mask=inside, other=0.0)
        column = tl.load(COLUMN + dim, mask=inside, other=-1)
        turns = (column >= 0) & ((own != 0.0) | (cross != 0.0))
        at = place[:, None] * PAIRS + column[None, :]
        cos = tl.load(COS + at, mask=mask & turns[None, :], other=1.0)
        sin = tl.load(SIN + at, mask=mask & turns[None, :], other=0.0)
        turned = own[None, :] * cos + cross[None, :] * sin
    return middle, turned

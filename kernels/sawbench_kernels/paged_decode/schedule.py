"""Which program reads which tokens: decided on the device from the lengths, so that a captured graph follows them.

Sequence b has ``ceil(length / TILE)`` tiles. The tiles of all sequences, laid end to end, are cut into equal shares,
one a program and KV head; a program whose share spans sequences reads them one after another. So all programs end
together, whatever the lengths are. The piece of sequence b that falls to program p is segment ``p + b``: walking
along the tiles, either p or b grows, so that no two pieces share a number and all are below ``programs + B``.
"""

import triton
import triton.language as tl


@triton.jit
def _tiles(LENGTHS, index, B, TILE: tl.constexpr):
    return (tl.load(LENGTHS + index, mask=index < B, other=0).to(tl.int32) + TILE - 1) // TILE


@triton.jit
def tiles_before(LENGTHS, B, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Tiles of sequences 0 to B - 1 together."""
    total = 0
    for start in range(0, B, BLOCK):
        total += tl.sum(_tiles(LENGTHS, start + tl.arange(0, BLOCK), B, TILE))
    return total


@triton.jit
def share_of(total, programs, LEAST: tl.constexpr):
    """Tiles of one program; at least LEAST, since a shorter share costs more to start and to merge than to read."""
    return tl.maximum((total + programs - 1) // programs, LEAST)


@triton.jit
def locate(LENGTHS, B, tile, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """(sequence that tile number ``tile`` belongs to, its place in that sequence)."""
    sequence = 0
    begin = 0
    carry = 0
    for start in range(0, B, BLOCK):
        index = start + tl.arange(0, BLOCK)
        tiles = _tiles(LENGTHS, index, B, TILE)
        ends = carry + tl.cumsum(tiles, 0)
        passed = (ends <= tile) & (index < B)
        sequence += tl.sum(passed.to(tl.int32))
        begin = tl.maximum(begin, tl.max(tl.where(passed, ends, 0)))
        carry += tl.sum(tiles)
    return sequence, tile - begin

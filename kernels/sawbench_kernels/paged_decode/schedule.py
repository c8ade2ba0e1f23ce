"""Which program reads which tokens: decided on the device from the lengths, so that a captured graph follows them.

Sequence b has ``tiles(b) = ceil(length / TILE)`` tiles. One chunk size for the whole batch, ``ceil(all tiles /
target)``, cuts every sequence into equal items of at most that size: long sequences get many, short ones get one, an
empty one none, and their number never exceeds ``target + B``, the grid that the host launches.
"""

import triton
import triton.language as tl


@triton.jit
def tiles_of(LENGTHS, index, B, TILE: tl.constexpr):
    return (tl.load(LENGTHS + index, mask=index < B, other=0).to(tl.int32) + TILE - 1) // TILE


@triton.jit
def chunk_size(LENGTHS, B, target, TILE: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr):
    """Tiles of the largest item."""
    total = 0
    for start in range(0, B, BLOCK):
        total += tl.sum(tiles_of(LENGTHS, start + tl.arange(0, BLOCK), B, TILE))
    return tl.maximum((total + target - 1) // target, LEAST)


@triton.jit
def find_item(LENGTHS, B, item, chunk, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """(sequence, index of the item in it); the sequence is B where there is no such item."""
    sequence = 0
    begin = 0
    carry = 0
    for start in range(0, B, BLOCK):
        index = start + tl.arange(0, BLOCK)
        items = (tiles_of(LENGTHS, index, B, TILE) + chunk - 1) // chunk
        ends = carry + tl.cumsum(items, 0)
        passed = (ends <= item) & (index < B)
        sequence += tl.sum(passed.to(tl.int32))
        begin = tl.maximum(begin, tl.max(tl.where(passed, ends, 0)))
        carry += tl.sum(items)
    return sequence, item - begin

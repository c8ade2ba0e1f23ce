"""Scores of tokens with a block of centroids, and the best of the block."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def assign_kernel(
    X, CENTROIDS, HALF_NORM, BEST, INDEX, tokens, x_token,
    E: tl.constexpr, C: tl.constexpr, BOOKS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """``x . c - |c|^2 / 2`` of ROWS tokens and BLOCK centroids of one codebook, the products as three TF32 products.

    X [tokens, BOOKS * E]; CENTROIDS float32 [BOOKS, C, E]; HALF_NORM float32 [BOOKS, C]. BEST float32 and INDEX int64
    [blocks, tokens, BOOKS]: the largest score of a block and the lowest centroid that has it.
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    centroid = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    book = tl.program_id(2)
    depth = tl.arange(0, DEPTH)
    here = token < tokens
    there = centroid < C
    x = X + token[:, None] * x_token + book * E + depth[None, :]
    c = CENTROIDS + (book * C + centroid)[None, :] * E + depth[:, None]
    norm = tl.load(HALF_NORM + book * C + centroid, mask=there, other=float("inf"))
    score = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, E, DEPTH):
        left = tl.load(x + start, mask=here[:, None], other=0.0).to(tl.float32)
        right = tl.load(c + start, mask=there[None, :], other=0.0)
        score = tl.dot(left, right, score, input_precision="tf32x3")
    best, index = tl.max(score - norm[None, :], 1, return_indices=True, return_indices_tie_break_left=True)
    out = (tl.program_id(1) * tokens + token) * BOOKS + book
    tl.store(BEST + out, best, mask=here)
    tl.store(INDEX + out, tl.program_id(1) * BLOCK + index.to(tl.int64), mask=here)

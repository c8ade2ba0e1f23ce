"""Products of tokens with centroids, over parts of the dimensions, and the best centroid of each token."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def products_kernel(
    X, CENTROIDS, PRODUCTS, tokens, x_token,
    E: tl.constexpr, C: tl.constexpr, BOOKS: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """``x . c`` of ROWS tokens and BLOCK centroids of one codebook over PART dimensions, each as three TF32 products.

    X [tokens, BOOKS * E]; CENTROIDS float32 [BOOKS, C, E]; PRODUCTS float32 [E / PART, tokens, BOOKS, C].
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    centroid = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    book = tl.program_id(2) % BOOKS
    part = tl.program_id(2) // BOOKS
    depth = part * PART + tl.arange(0, DEPTH)
    here = (token < tokens)[:, None]
    there = (centroid < C)[None, :]
    x = X + token[:, None] * x_token + book * E + depth[None, :]
    c = CENTROIDS + (book * C + centroid)[None, :] * E + depth[:, None]
    product = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, PART, DEPTH):
        left = tl.load(x + start, mask=here, other=0.0).to(tl.float32)
        right = tl.load(c + start, mask=there, other=0.0)
        product = tl.dot(left, right, product, input_precision="tf32x3")
    out = (part * tokens + token[:, None]) * (BOOKS * C) + book * C + centroid[None, :]
    tl.store(PRODUCTS + out, product, mask=here & there)


@triton.jit(do_not_specialize=["tokens"])
def nearest_kernel(
    PRODUCTS, HALF_NORM, INDEX, tokens,
    C: tl.constexpr, BOOKS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """INDEX int64 [tokens, BOOKS]: the lowest centroid with the largest ``x . c - |c|^2 / 2``.

    PRODUCTS float32 [PARTS, tokens, BOOKS, C]; HALF_NORM float32 [BOOKS, C]; WIDE: C rounded up to a power of two.
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    book = tl.program_id(1)
    centroid = tl.arange(0, WIDE)
    here = token < tokens
    there = centroid < C
    norm = tl.load(HALF_NORM + book * C + centroid, mask=there, other=float("inf"))
    score = tl.zeros([ROWS, WIDE], tl.float32)
    for part in range(PARTS):
        at = (part * tokens + token[:, None]) * (BOOKS * C) + book * C + centroid[None, :]
        score += tl.load(PRODUCTS + at, mask=here[:, None] & there[None, :], other=0.0)
    _, index = tl.max(score - norm[None, :], 1, return_indices=True, return_indices_tie_break_left=True)
    tl.store(INDEX + token * BOOKS + book, index.to(tl.int64), mask=here)

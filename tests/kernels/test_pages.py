"""The page layout: bytes counted are bytes allocated, and what is stored comes back, wherever it lies."""

import pytest
import torch

from sawbench_kernels import pages
from sawbench_kernels.codec import decode, encode
from sawbench_kernels.pages import PageLayout

LAYOUTS = [
    PageLayout(2, 64, 16, key_bits, value_bits, key_centroids=c, value_centroids=c, books=2)
    for key_bits in pages.BITS
    for value_bits in pages.BITS
    for c in (0, 16, 2048)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_planes_tile_the_page_without_gap_or_overlap(layout: PageLayout) -> None:
    end = 0
    for plane in layout.planes:
        assert plane.offset == end
        assert plane.offset % pages.ALIGNMENT == 0
        end += plane.bytes
    assert end == layout.page_bytes == layout.token_bytes * layout.page_size
    pool = layout.allocate(3, "cpu", layers=2)
    assert pool.nbytes == 2 * 3 * layout.page_bytes
    planes = layout.view(pool)
    assert sum(p.nbytes for p in planes.values()) == pool.nbytes
    assert all(p.untyped_storage().data_ptr() == pool.untyped_storage().data_ptr() for p in planes.values())


def test_bytes_per_token_of_the_published_shape() -> None:
    """Qwen3-8B, 36 layers: 147,456 bytes a token in BF16, 39,168 in INT4 with an fp16 pair."""
    assert 36 * PageLayout(8, 128, key_bits=16, value_bits=16).token_bytes == 147_456
    assert 36 * PageLayout(8, 128).token_bytes == 39_168
    assert 8 * PageLayout(8, 128).token_bytes / (2 * 8 * 128) == 4.25


@pytest.mark.parametrize("bits", [(4, 4), (8, 4), (16, 8)])
def test_store_then_gather_among_poison(bits: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    layout = PageLayout(2, 64, 16, *bits, key_centroids=16)
    pool = layout.allocate(5, "cpu").fill_(0xFF)
    planes = layout.view(pool)
    table = torch.tensor([4, 0, 2])
    slots = pages.slots_of(table, 37, 16)
    x = torch.randn(37, 2, 64, generator=generator).bfloat16()
    encoded = encode(x, "key", bits[0]) | encode(x, "value", bits[1])
    encoded["key.index"] = torch.randint(0, 16, (37, 1), generator=generator)
    skipped = slots.clone()
    skipped[5] = -1
    pages.store(planes, skipped, encoded)
    got = pages.gather(planes, slots)
    kept = skipped >= 0
    for name, rows in encoded.items():
        assert torch.equal(got[name][kept], rows[kept].to(got[name].dtype)), name
    assert (pool[1] == 0xFF).all()
    assert (pool[3] == 0xFF).all()
    value = decode(got, "value", bits[1], 64, torch.float32)[kept]
    step = (x.float().amax(-1) - x.float().amin(-1)) / (2 ** bits[1] - 1) if bits[1] < 16 else torch.zeros(37, 2)
    assert ((value - x[kept].float()).abs() <= 0.51 * step[kept][..., None] + 2e-3).all()


def test_slots_beyond_32_bits_do_not_wrap() -> None:
    table = torch.tensor([2**28], dtype=torch.int32)
    assert pages.slots_of(table, 3, 128)[-1].item() == 2**35 + 2


@pytest.mark.parametrize(
    "wrong",
    [{"key_bits": 3}, {"value_bits": 5}, {"page_size": 24}, {"page_size": 8}, {"head_dim": 60}, {"books": 3}],
    ids=str,
)
def test_layouts_that_no_kernel_reads_are_refused(wrong: dict[str, int]) -> None:
    settings = {"kv_heads": 2, "head_dim": 64, "page_size": 16} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PageLayout(**settings)  # type: ignore[arg-type]

"""The block manager: pages are handed out once, come back once, and page 0 is nobody's."""

import random

import pytest

from sawbench.cache.pages import BlockManager, OutOfPages


def test_a_storm_never_hands_a_page_out_twice() -> None:
    """Known fault 20: at a full pool, freed and reused pages are nobody else's."""
    draw = random.Random(0)
    blocks, held = BlockManager(40, 16), []
    for _ in range(3000):
        if held and draw.random() < 0.5:
            blocks.give_back(held.pop(draw.randrange(len(held))))
        else:
            count = draw.randint(1, 7)
            if count <= blocks.free:
                held.append(blocks.take(count))
            else:
                with pytest.raises(OutOfPages):
                    blocks.take(count)
        pages = [page for group in held for page in group]
        assert len(pages) == len(set(pages)) == blocks.used
        assert 0 not in pages
        assert blocks.free + blocks.used == 39


def test_pages_come_back_once() -> None:
    blocks = BlockManager(8, 16)
    pages = blocks.take(3)
    blocks.give_back(pages)
    for wrong in (pages, [0], [9]):
        with pytest.raises(ValueError, match="not all in use"):
            blocks.give_back(wrong)
    assert blocks.free == 7


@pytest.mark.parametrize(("tokens", "held", "needed"), [(0, 0, 0), (1, 0, 1), (16, 0, 1), (17, 1, 1), (17, 2, 0)])
def test_pages_needed(tokens: int, held: int, needed: int) -> None:
    assert BlockManager(8, 16).needed(tokens, held) == needed

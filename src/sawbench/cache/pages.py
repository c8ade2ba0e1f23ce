"""Which pages belong to whom: a free list and block tables, without torch."""

from collections import deque


class OutOfPages(Exception):
    """The pool has fewer free pages than were asked for."""


class BlockManager:
    """Hands out pages 1 to ``pages`` - 1. Page 0 is nobody's: padding rows of a captured graph write there.

    Freed pages are reused in the order in which they came back; nothing in them is cleared, since whoever gets a page
    writes a slot before reading it.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages, self.page_size = pages, page_size
        self._free = deque(range(1, pages))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    @property
    def used(self) -> int:
        return self.pages - 1 - self.free

    def needed(self, tokens: int, held: int = 0) -> int:
        """Pages that ``tokens`` tokens want beyond the ``held`` ones."""
        return max(0, -(-tokens // self.page_size) - held)

    def take(self, count: int) -> list[int]:
        """``count`` pages.

        Raises:
            OutOfPages: there are fewer; none is taken then.
        """
        if count > self.free:
            raise OutOfPages(f"{count} pages asked for, {self.free} free")
        taken = [self._free.popleft() for _ in range(count)]
        self._taken.update(taken)
        return taken

    def give_back(self, pages: list[int]) -> None:
        """Pages of a finished or preempted sequence.

        Raises:
            ValueError: a page is already free, or no page of the pool.
        """
        if len(set(pages)) != len(pages) or not self._taken.issuperset(pages):
            raise ValueError(f"pages {pages} are not all in use")
        self._taken.difference_update(pages)
        self._free.extend(pages)

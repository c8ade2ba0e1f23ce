"""Bars for whatever takes longer than two seconds."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Wraps an iterable: ``for x in progress(items, total=None, text="prompts")``."""

    def __call__(self, items: Iterable[T], total: int | None, text: str) -> Iterable[T]: ...


def silent(items: Iterable[T], total: int | None = None, text: str = "") -> Iterable[T]:
    """No bar."""
    return items


def bar(items: Iterable[T], total: int | None = None, text: str = "") -> Iterator[T]:
    """A tqdm bar on standard error; short work (under half a second) draws none."""
    from tqdm import tqdm

    yield from tqdm(items, desc=text, total=total, delay=0.5, dynamic_ncols=True)

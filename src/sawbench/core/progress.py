"""Bars for whatever takes longer than two seconds."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Wraps an iterable: ``for x in progress(items, total=None, text="prompts")``."""

    def __call__(self, items: Iterable[T], total: int | None, text: str) -> Iterable[T]: ...


def silent(items: Iterable[T], total: int | None = None, text: str = "") -> Iterable[T]:
    """No bar."""
    return items


def bar(items: Iterable[T], total: int | None = None, text: str = "") -> Iterable[T]:
    """A tqdm bar on standard error, shown from the first moment: the first item may be a minute away."""
    from tqdm import tqdm

    return items if total == 0 else tqdm(items, desc=text, total=total, dynamic_ncols=True)

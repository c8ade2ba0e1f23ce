"""Where a task puts samples as they are made, and finds those that an earlier, killed run left."""

from collections.abc import Mapping
from typing import Any, Protocol


class SampleSink(Protocol):
    """A cell's samples.jsonl."""

    @property
    def done(self) -> Mapping[str, Mapping[str, Any]]:
        """What is already on disk, by sample id."""
        ...

    def add(self, sample_id: str, sample: Mapping[str, Any]) -> None:
        """Write one more, durably."""
        ...

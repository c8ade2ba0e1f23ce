"""Where a task puts samples as they are made, and finds those that an earlier, killed run left."""

from collections.abc import Mapping
from typing import Any, Protocol


class SampleSink(Protocol):
    """A cell's samples.jsonl. ``done`` maps a sample's id to what is already on disk; ``add`` writes one more, durably."""

    done: Mapping[str, Mapping[str, Any]]

    def add(self, sample_id: str, sample: Mapping[str, Any]) -> None: ...

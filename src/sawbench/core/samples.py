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


def tokens_held(sample: Mapping[str, Any]) -> int | None:
    """Tokens of a sample's prompt and answer, which its row of the cache held; None where the sample does not say."""
    answer = sample.get("tokens", sample.get("answer"))
    written = len(answer) if isinstance(answer, list) else answer
    prompt = sample.get("prompt_tokens")
    return prompt + written if isinstance(prompt, int) and isinstance(written, int) else None

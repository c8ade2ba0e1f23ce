"""The outlier profile of a model's keys, by layer, head and channel, before and after what the method does to them.

This is the picture that explains the study: one channel of a head sets the scale of all, and a rotation spreads it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sawbench.core.errors import UserError
from sawbench.core.records import Metric, TaskResult
from sawbench.core.replay import KeyChannel, Replay
from sawbench.prompts import encode_prompt, shipped
from sawbench.tasks.base import TaskContext

if TYPE_CHECKING:
    from sawbench.models import ModelPlan


@dataclass(frozen=True)
class Keys:
    """Options of ``task=keys``: how many of the shipped ``prompts`` are read."""

    name: str = "keys"
    engine: str = "hf"
    prompts: int = 8

    def check(self, plan: "ModelPlan") -> None:
        """Raises UserError for more prompts than ship."""
        available = len(shipped("fidelity"))
        if not 1 <= self.prompts <= available:
            raise UserError(f"task.prompts={self.prompts} is not between 1 and {available}, the prompts that ship")

    def run(self, ctx: TaskContext) -> TaskResult:
        ids = [encode_prompt(ctx.engine.tokenizer, p.text) for p in shipped("fidelity")[: self.prompts]]
        items = [Replay(str(at), tuple(prompt[:-1]), tuple(prompt[-1:])) for at, prompt in enumerate(ids)]
        channels: list[KeyChannel] = ctx.engine.key_channels(items)
        metrics = tuple(
            Metric(f"key_peak_{stage}", peak([c for c in channels if c.stage == stage]), "ratio", n=len(items))
            for stage in ("before", "after")
        )
        return TaskResult(metrics, {"key_profile": [asdict(channel) for channel in channels]})


def peak(channels: Sequence[KeyChannel]) -> float:
    """Largest magnitude of a channel over the root mean square of its head, in the worst head."""
    heads: dict[tuple[int, int], list[KeyChannel]] = {}
    for channel in channels:
        heads.setdefault((channel.layer, channel.head), []).append(channel)
    return max(
        max(c.absmax for c in head) / max((sum(c.rms**2 for c in head) / len(head)) ** 0.5, 1e-30)
        for head in heads.values()
    )

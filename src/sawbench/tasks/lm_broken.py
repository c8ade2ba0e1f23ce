"""Items of an lm-eval task that are wrong whatever lm-eval makes of them: no answer, or a log-likelihood that is no
number. An empty text or a NaN can pass for right there (argmax over NaN takes the first NaN)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from sawbench.tasks.lm_bridge import Unanswered


@dataclass(frozen=True)
class Broken:
    """In place of a response as lm-eval's filters left it."""

    response: Any


def strict(task: Any) -> Any:
    """The lm-eval ``task`` with broken items scored as wrong, so that its own aggregates and groups count them so."""
    filters, score, rising = task.apply_filters, task.process_results, task.higher_is_better()

    def apply_filters() -> Any:
        found = filters()
        for instance in task.instances:
            if all(map(broken, instance.resps)):
                instance.filtered_resps = {name: Broken(each) for name, each in instance.filtered_resps.items()}
        return found

    def process_results(document: Any, responses: Sequence[Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = score(document, [r.response if isinstance(r, Broken) else r for r in responses])
        if not any(isinstance(response, Broken) for response in responses):
            return found
        return {name: _worst(value, rising.get(name, True)) for name, value in found.items()}

    task.apply_filters, task.process_results = apply_filters, process_results
    return task


def broken(response: Any) -> bool:
    return isinstance(response, Unanswered) or not_finite(response)


def not_finite(response: Any) -> bool:
    """Whether a response is a log-likelihood, alone or with its greedy flag, that is NaN or infinite."""
    total = response[0] if isinstance(response, tuple) else response
    return isinstance(total, float) and not isfinite(total)


def _worst(value: Any, rising: bool) -> Any:
    """The worst of a score in [0, 1]. What is no such score (a log-likelihood, parts of a sum) shows its own damage."""
    return float(not rising) if isinstance(value, int | float) and 0 <= value <= 1 else value

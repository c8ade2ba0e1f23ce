"""Items of an lm-eval task that are wrong whatever lm-eval makes of them: no answer, or a log-likelihood that is no
number. An empty text or a NaN can pass for right there (argmax over NaN takes the first NaN)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from sawbench.tasks.lm_bridge import Unanswered

NO_ANSWER, NOT_FINITE = "no answer", "log-likelihood not finite"


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
            if flaw([instance.resps]):
                instance.filtered_resps = {name: Broken(each) for name, each in instance.filtered_resps.items()}
        return found

    def process_results(document: Any, responses: Sequence[Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = score(document, [r.response if isinstance(r, Broken) else r for r in responses])
        if not any(isinstance(response, Broken) for response in responses):
            return found
        return {name: _worst(value, rising.get(name, True)) for name, value in found.items()}

    task.apply_filters, task.process_results = apply_filters, process_results
    return task


def flaw(requests: Sequence[Sequence[Any]]) -> str:
    """Why an item is broken, from the responses to each of its requests: a request without one that counts breaks it.
    Empty where nothing does."""
    for responses in requests:
        if all(isinstance(response, Unanswered) for response in responses):
            return NO_ANSWER
        if all(map(_not_finite, responses)):
            return NOT_FINITE
    return ""


def _not_finite(response: Any) -> bool:
    """Whether a response is a log-likelihood, alone or with its greedy flag, that is NaN or infinite."""
    total = response[0] if isinstance(response, tuple) else response
    return isinstance(total, float) and not isfinite(total)


def _worst(value: Any, rising: bool) -> Any:
    """The worst of a score in [0, 1]. What is no such score (a log-likelihood, parts of a sum) shows its own damage."""
    return float(not rising) if isinstance(value, int | float) and 0 <= value <= 1 else value

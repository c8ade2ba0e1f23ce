"""One loaded model at a time."""

from dataclasses import dataclass, field
from typing import Any

import torch

from sawbench.models import LoadedModel, ModelPlan, load_model


@dataclass
class Shelf:
    """Holds the model that was asked for last, so that a sweep over methods loads its weights once."""

    _key: Any = None
    _models: list[LoadedModel] = field(default_factory=list)

    def load(self, plan: ModelPlan, device: torch.device, dtype: torch.dtype) -> LoadedModel:
        key = (plan.identity, plan.eos, device, dtype)
        if key != self._key:
            self._key = None
            self._models.clear()  # before the next one loads: two may not fit
            self._models.append(load_model(plan, device, dtype))
            self._key = key
        return self._models[0]


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on the CPU (which torch reports as a plain RuntimeError)."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)

"""The device, the dtype and the model that a verb works with."""

from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from sawbench.core.errors import illegal
from sawbench.models import LoadedModel, ModelPlan, load_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def device_of(name: str) -> torch.device:
    """``auto`` is the first CUDA device, else the CPU.

    Raises:
        UserError: another word, or a CUDA device that this machine lacks.
    """
    here = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    known = {"auto": here[1] if len(here) > 1 else "cpu", "cuda": "cuda:0"} | {one: one for one in here}
    if known.get(name) not in here:
        raise illegal("device", name, ["auto", *here])
    return torch.device(known[name])


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is float32 on the CPU, whose bfloat16 products are slow, and bfloat16 elsewhere."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise illegal("model.dtype", name, ["auto", *DTYPES])
    return DTYPES[name]


@dataclass
class Shelf:
    """Holds the model that was asked for last, so that a sweep over methods loads its weights once."""

    _key: Any = None
    _models: list[LoadedModel] = field(default_factory=list)

    def load(self, config: DictConfig, plan: ModelPlan, device: torch.device, dtype: torch.dtype) -> LoadedModel:
        key = (OmegaConf.to_yaml(config, resolve=True), device, dtype)
        if key != self._key:
            self._models.clear()  # before the next one loads: two may not fit
            self._key = None
            self._models.append(load_model(plan, device, dtype))
            self._key = key
        return self._models[0]


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on the CPU (which torch reports as a plain RuntimeError)."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)

"""Load a hub id, a local folder, a GGUF file or random weights of a named shape, and learn what a method must know."""

from sawbench.models.load import LoadedModel, capture_layers, choose_device, choose_dtype, load_model
from sawbench.models.plan import ModelPlan, has_weights, plan_model

__all__ = [
    "LoadedModel",
    "ModelPlan",
    "capture_layers",
    "choose_device",
    "choose_dtype",
    "has_weights",
    "load_model",
    "plan_model",
]

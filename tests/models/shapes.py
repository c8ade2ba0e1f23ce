"""Tiny configurations for the tests of models: configs/model/tiny.yaml with another architecture."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from sawbench.config import group_config
from sawbench.models import LoadedModel, ModelPlan, load_model, plan_model

CPU = torch.device("cpu")


def tiny_config(model_type: str = "qwen2", **fields: Any) -> DictConfig:
    """The configuration of ``tiny`` as ``model.config.model_type=... model.config.FIELD=...`` makes it."""
    config = group_config("model", "tiny")
    OmegaConf.update(config, "config", {"model_type": model_type, **fields})
    return config


def tiny_plan(model_type: str = "qwen2", seed: int = 0, **fields: Any) -> ModelPlan:
    config = tiny_config(model_type, **fields)
    config.seed = seed
    return plan_model(config)


def tiny_model(model_type: str = "qwen2", dtype: torch.dtype = torch.float32, **fields: Any) -> LoadedModel:
    return load_model(tiny_plan(model_type, **fields), CPU, dtype)

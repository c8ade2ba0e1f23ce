"""How rows and tables are titled: by name, and by what was not left as it ships."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sawbench.config import choices, compose

SETTINGS = ("prefill", "attention", "seed")
BATCHING = ("batch_size", "max_running", "kv_bytes", "gpu_memory")
"""Keys of an engine that decide how much runs at once: no part of what is measured."""


def row_label(config: DictConfig) -> str:
    """``method option=value ...``: how a table names a run."""
    return assignments(config.method.name, changed_options(config) | changed_settings(config))


def group_label(config: DictConfig, model: str) -> str:
    """``model, task option=value ...``: rows under one such title can be compared."""
    name = config.task.name
    ours = name in choices("task") and shipped("task", name).task._target_ == config.task._target_
    options = changed(config.task, shipped("task", name).task) if ours else {}
    return f"{model}, {assignments(name, options)}"


def changed_options(config: DictConfig) -> dict[str, Any]:
    """The method's options that differ from its file."""
    name = config.method.name
    return changed(config.method.options, shipped("method", name).method.options)


def changed_settings(config: DictConfig) -> dict[str, Any]:
    plain = shipped("engine", config.engine.name)
    settings = changed({name: config[name] for name in SETTINGS}, plain)
    engine = changed(config.engine, plain.engine)
    return settings | {f"engine.{name}": value for name, value in engine.items() if name not in (*SETTINGS, *BATCHING)}


def changed(given: Mapping[Any, Any], before: Mapping[Any, Any]) -> dict[str, Any]:
    """Leaves of ``given`` by dotted key, where ``before`` has another value."""
    known = dict(leaves(before))
    return {key: value for key, value in leaves(given) if key not in known or known[key] != value}


def leaves(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping | DictConfig):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.to_object(value) if OmegaConf.is_config(value) else value


@cache
def shipped(group: str, name: str) -> DictConfig:
    """The configuration of ``run group=name``, nothing else said."""
    return compose("run", [f"{group}={name}"])


def assignments(name: str, options: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in options.items())])

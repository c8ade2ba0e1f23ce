"""``list``: what there is, with what each method stores per value."""

import logging
from collections.abc import Sequence

import torch
from omegaconf import DictConfig

from sawbench.config import choices, config_dir, group_config, instantiate
from sawbench.core.errors import UserError, illegal
from sawbench.core.shape import KVShape
from sawbench.methods.method import KVMethod
from sawbench.methods.parts import ModelFacts
from sawbench.models import ModelPlan, has_weights, plan_model
from sawbench.verbs.table import table

SHAPE = KVShape(layers=1, query_heads=32, kv_heads=8, head_dim=128)
"""A layer of the paper's 8B model: what bits per value are quoted for."""


def main(config: DictConfig) -> int:
    """Raises UserError for an unknown ``what``."""
    sections = {"models": models, "methods": methods, "tasks": tasks, "engines": engines}
    if config.what not in ("all", *sections):
        raise illegal("what", config.what, ["all", *sections])
    for name, section in sections.items():
        if config.what in ("all", name):
            print(f"{name}\n{section()}\n")
    return 0


def models() -> str:
    """Models with their weights' whereabouts; below, why some are refused and how to get what is not here."""
    plans, refused = {}, []
    for name in choices("model"):
        try:
            plans[name] = plan_model(group_config("model", name), need_weights=False)
        except UserError as error:
            refused.append(f"refused by run: {error}")
    rows = [model_row(name, plan) for name, plan in plans.items()]
    how = "not here: `hf download HUB_ID`, or model.path=FOLDER or model.path=FILE.gguf; `doctor` for the default model"
    return "\n".join([table(["model", "layers", "heads q/kv", "head_dim", "hub", "weights"], rows), *refused, how])


def model_row(name: str, plan: ModelPlan) -> Sequence[str]:
    shape = plan.shape
    heads = f"{shape.query_heads}/{shape.kv_heads}"
    where = "not here" if has_weights(plan) else "at hand"
    return [name, str(shape.layers), heads, str(shape.head_dim), plan.source.origin, where]


def methods() -> str:
    rows = []
    for name in choices("method"):
        method = instantiate(group_config("method", name), f"method={name}")
        rows.append([name, f"{bits_per_value(method):.2f}", str(method.calibration_tokens or "-"), method.about])
    return table(["method", "bits per value", "calibration tokens", "what it stores"], rows)


def bits_per_value(method: KVMethod) -> float:
    """Bytes that one token of SHAPE really takes, as bits for each of its values; what is held once is left out."""
    facts = ModelFacts("head_dim 128, 8 KV heads", SHAPE)
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(1, 1, SHAPE.kv_heads, SHAPE.head_dim, generator=generator)
    logging.getLogger("sawbench.methods").setLevel(logging.ERROR)  # these facts have no key bias, on purpose
    (layer,) = method.bind(facts, method.synthetic(facts, seed=0), torch.device("cpu"))
    sides = (layer.key, layer.value)
    planes = [plane for side in sides for plane in side.encode(token, torch.zeros(1, 1, dtype=torch.int32)).values()]
    return 8 * sum(plane.nbytes for plane in planes) / SHAPE.values_per_token


def tasks() -> str:
    return described("task")


def engines() -> str:
    return described("engine")


def described(group: str) -> str:
    """Names with the comment that opens each file."""
    return table([group, "what it is"], [[name, opening_comment(group, name)] for name in choices(group)])


def opening_comment(group: str, name: str) -> str:
    first = (config_dir() / group / f"{name}.yaml").read_text().partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""

"""``list``: what there is, with what each method stores per value."""

from collections.abc import Sequence

from omegaconf import DictConfig

from sawbench.config import choices, config_dir, group_config, instantiate
from sawbench.core.errors import UserError, illegal
from sawbench.core.shape import KVShape
from sawbench.methods.method import KVMethod
from sawbench.models import ModelPlan, has_weights, plan_model
from sawbench.throughput.costs import layer_bytes
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
    """Methods with the bits of a token; below, why no page holds the bytes of some."""
    rows, refused = [], []
    for name in choices("method"):
        method = instantiate(group_config("method", name), f"method={name}")
        bits, tokens = f"{bits_per_value(method):.2f}", str(method.calibration_tokens or "-")
        rows.append([name, bits, tokens, "no" if method.unservable else "yes", method.about])
        if method.unservable:
            refused.append(f"{name} is not servable (engine=hf runs it): {method.unservable}")
    shown = table(["method", "bits per value", "calibration tokens", "servable", "what it stores"], rows)
    return "\n".join([shown, *refused])


def bits_per_value(method: KVMethod) -> float:
    """Bits that one token of SHAPE really takes, for each of its values; what is held once is left out."""
    return 8 * layer_bytes(method, SHAPE) / SHAPE.values_per_token


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

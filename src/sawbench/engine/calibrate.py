"""Finds a method's calibration artifact, or makes it: text, then queries, keys and values of the unquantized model on
that text, then each part's own fit, a few layers at a time."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sawbench import __version__
from sawbench.config import instantiate
from sawbench.core.files import locked, made_once, write_atomic
from sawbench.core.progress import Progress, bar
from sawbench.engine.calibration_text import CalibrationText, TextShelf
from sawbench.engine.hf import HFEngine
from sawbench.methods.calibration import Provenance, load, save
from sawbench.methods.method import KVMethod, Side
from sawbench.methods.mixed import sensitivity_rows
from sawbench.methods.parts import LayerSample
from sawbench.methods.quantizers import Raw
from sawbench.models import LoadedModel, capture_layers
from sawbench.results.tidy import read_csv, to_csv

log = logging.getLogger(__name__)

WINDOW = 2048  # tokens that one forward sees: positions, and so rotations, up to 2,047 enter what is fitted
HELD_BYTES = 4 << 30  # captured q, k and v held at once; more layers than fit take another pass over the text
REFERENCE = KVMethod("reference", Side(quantizer=Raw("compute")), Side(quantizer=Raw("compute")))


@dataclass(frozen=True)
class Artifact:
    """A calibration at hand; ``made`` says whether this call made it."""

    path: Path
    tensors: Mapping[str, Tensor]
    made: bool


def artifact_for(
    method: KVMethod, loaded: LoadedModel, config: Any, root: Path, progress: Progress = bar
) -> dict[str, Tensor]:
    """Tensors for ``KVMethod.bind``: {} where the method calibrates nothing. Made and kept where they are missing.

    Args:
        config: the composed ``calibration`` group.
        root: the results folder; artifacts lie in its ``calibration/``.

    Raises:
        UserError: the text cannot be had or is too short, or a named artifact does not fit.
    """
    if not method.calibration_tokens:
        return {}
    return dict(find_or_make(method, loaded, instantiate(config, "calibration"), root, progress).tensors)


def find_or_make(
    method: KVMethod, loaded: LoadedModel, text: CalibrationText, root: Path, progress: Progress = bar
) -> Artifact:
    """The artifact of a method that calibrates; ``text.artifact`` names one to use whatever text made it."""
    synthetic = loaded.identity["weights"] == "random"
    tokens = text.tokens or method.calibration_tokens
    source = (
        {"source": "none"} if synthetic else {**text.describe(), "tokens": tokens, "dtype": str(loaded.model.dtype)}
    )
    wanted = Provenance.of(method, loaded.identity, loaded.shape, source | {"seed": text.seed}, synthetic)
    path = root / "calibration" / f"{wanted.digest}.safetensors" if text.artifact is None else Path(text.artifact)

    def make() -> None:
        log.info("%s has no calibration for %s yet: making it", method.name, loaded.identity["name"])
        notes: dict[str, Any] = {"sawbench": __version__, "method": method.name}
        if synthetic:
            tensors = method.synthetic(loaded.facts, text.seed)
            log.info("random weights: the calibration is drawn at random (seed %d) and marked synthetic", text.seed)
        else:
            ids = read_text(text, loaded, tokens, path.parent, progress)
            tensors = fit(method, loaded, ids, text.seed, progress)
            notes["ids_sha256"] = sha256(json.dumps(ids).encode()).hexdigest()
        save(path, tensors, wanted, notes)
        log.info("calibration written: %s", path)

    made = text.artifact is None and made_once(path, make)
    artifact = Artifact(path, load(path, wanted), made)
    write_sensitivity(artifact.tensors, wanted, root)
    return artifact


def write_sensitivity(tensors: Mapping[str, Tensor], made_from: Provenance, root: Path) -> None:
    """What was measured of each head, in the place of this model's rows of ``sensitivity.csv`` below ``root``; nothing
    where no part measures heads, or where they were drawn at random."""
    rows = [] if made_from.synthetic else sensitivity_rows(tensors)
    if not rows:
        return
    model, path = made_from.model["name"], root / "sensitivity.csv"
    with locked(root / "calibration" / ".sensitivity.lock"):
        others = [row for row in read_csv(path) if row["model"] != model]
        write_atomic(path, to_csv([*others, *({"model": model, **row} for row in rows)]))


def read_text(text: CalibrationText, loaded: LoadedModel, count: int, folder: Path, progress: Progress) -> list[int]:
    """``count`` token ids, written by the unquantized model where ``text`` asks it to."""
    engine = HFEngine(loaded, REFERENCE, {}, batch_size=16)
    return TextShelf(folder).tokens(text, dict(loaded.identity), engine, count, progress)


def fit(
    method: KVMethod, loaded: LoadedModel, ids: Sequence[int], seed: int, progress: Progress = bar
) -> dict[str, Tensor]:
    """The method's tensors, fitted on ``ids`` in windows of at most 2,048 tokens."""
    tensors: dict[str, Tensor] = {}
    samples = captured(loaded, ids, progress)
    for layer, sample in progress(samples, loaded.shape.layers, f"fit of {method.name}, layers"):
        tensors |= method.fit(layer, sample, seed)
    return method.settled(tensors)


def captured(loaded: LoadedModel, ids: Sequence[int], progress: Progress) -> Iterator[tuple[int, LayerSample]]:
    """Layer numbers and samples over all of ``ids``, in order, never many more than HELD_BYTES of them at once."""
    shape = loaded.shape
    a_layer = 4 * len(ids) * shape.head_dim * (shape.query_heads + 2 * shape.kv_heads)
    at_once = max(1, HELD_BYTES // a_layer)
    for first in range(0, shape.layers, at_once):
        windows = list(_windows(loaded, ids, slice(first, first + at_once), progress))
        for at in range(len(windows[0])):
            yield first + at, joined([window[at] for window in windows])


def _windows(loaded: LoadedModel, ids: Sequence[int], layers: slice, progress: Progress) -> Iterator[list[LayerSample]]:
    """Samples of ``layers`` for each window of tokens."""
    size = min(WINDOW, loaded.max_length)
    starts = range(0, len(ids), size)
    for start in progress(starts, len(starts), "queries, keys and values, windows"):
        yield capture_layers(loaded, torch.tensor([ids[start : start + size]]))[layers]


def joined(samples: Sequence[LayerSample]) -> LayerSample:
    """One layer's samples of several windows as one."""
    query, key, value = (torch.cat([getattr(s, name) for s in samples]) for name in ("query", "key", "value"))
    first = samples[0]
    return LayerSample(query, key, value, first.output_weight, first.scaling, len(first.query))

"""GGUF files, dequantized and converted once to a folder that transformers loads in seconds."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

from sawbench.core.errors import UserError
from sawbench.models.cache_dir import build_folder, cache_dir, known_sha256
from sawbench.models.gguf_tokenizer import gguf_tokenizer

log = logging.getLogger(__name__)

_RECIPE = 2
"""Changes when the conversion does, so that copies made before are not taken for its result."""


def converted_folder(file: Path) -> Path:
    """Where the converted weights of ``file`` are, or would be: keyed by its content and the transformers version."""
    return cache_dir() / "gguf" / f"{known_sha256(file)[:16]}-{_RECIPE}-transformers-{transformers.__version__}"


def gguf_config(file: Path) -> Any:
    """The HF configuration that the file's header describes.

    Raises:
        UserError: it is no GGUF file, or transformers cannot convert its architecture.
    """
    folder = converted_folder(file)
    if folder.is_dir():
        return AutoConfig.from_pretrained(folder)
    try:
        return AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    except ValueError as error:
        raise UserError(f"model.path={file}: {str(error).splitlines()[0]}") from error


def convert(file: Path) -> Path:
    """The converted folder of ``file``: float32 safetensors, tokenizer and configuration.

    Raises:
        UserError: the cache's disk has no room for it.
    """
    return build_folder(converted_folder(file), lambda target: _convert(file, target))


def _convert(file: Path, target: Path) -> None:
    needed, free = _float32_bytes(file), shutil.disk_usage(target).free
    if needed > free:
        raise UserError(
            f"{file.name} as float32 needs {needed / 1e9:.1f} GB in {cache_dir()}, where {free / 1e9:.1f} GB are free; "
            "SAWBENCH_CACHE=FOLDER names another place"
        )
    log.warning("converting %s into %s: once, about 10 s for each 100 MB", file.name, converted_folder(file))
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(target)
    gguf_tokenizer(file).save_pretrained(target)
    (target / "sawbench.json").write_text(json.dumps({"gguf": file.name, "sha256": known_sha256(file)}))


def _float32_bytes(file: Path) -> int:
    """Of all weights of ``file``, by its header."""
    return 4 * sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)

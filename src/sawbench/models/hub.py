"""The model hub: what its cache holds, and what it is asked for where the cache does not."""

from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from sawbench.core.errors import UserError

_UNUSED = ["*.pth", "*.bin", "*.gguf", "*.onnx", "original/*"]
"""Files of a repository that are not downloaded: other formats of the same weights."""


def cached_snapshot(hub: str, revision: str | None) -> Path | None:
    """The folder of ``hub`` at ``revision`` in the hub's cache, named after its commit; it may lack files."""
    try:
        cache = constants.HF_HUB_CACHE
        return Path(huggingface_hub.snapshot_download(hub, revision=revision, cache_dir=cache, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def commit(hub: str, revision: str | None, otherwise: str) -> str:
    """The commit that ``revision`` (None: main) is now: asked once, without retries; no answer is an answer too.

    Raises:
        UserError: ``otherwise``, where the hub is switched off, cannot be reached or does not know the model.
    """
    if constants.HF_HUB_OFFLINE:
        raise UserError(otherwise)
    try:
        return str(huggingface_hub.HfApi().model_info(hub, revision=revision, timeout=10).sha)
    except Exception as error:  # whatever the HTTP library beneath the hub's client raises, it is the same to the user
        raise UserError(f"{otherwise} (asked the hub: {type(error).__name__})") from error


def download_config(hub: str, revision: str | None, otherwise: str) -> Path:
    """config.json of ``hub``; raises UserError as ``commit`` does."""
    return Path(huggingface_hub.hf_hub_download(hub, "config.json", revision=commit(hub, revision, otherwise)))


def download(hub: str, revision: str | None) -> Path:
    """The folder of ``hub`` with its weights, downloaded with a progress bar.

    Raises:
        UserError: the repository is gated, or the download broke off.
    """
    try:
        return Path(huggingface_hub.snapshot_download(hub, revision=revision, ignore_patterns=_UNUSED))
    except OSError as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{hub} could not be downloaded: {reason}") from error

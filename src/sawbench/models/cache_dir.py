"""Where fetched and converted weights are kept, and how files are put there so that nobody sees half of one."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from sawbench.core.files import made_once, write_atomic


def cache_dir() -> Path:
    """``$SAWBENCH_CACHE``, else ``~/.cache/sawbench``."""
    return Path(os.environ.get("SAWBENCH_CACHE") or Path.home() / ".cache" / "sawbench")


def build_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """``target``, filled by ``fill`` in a folder beside it that is then renamed: complete, or not there at all. Of
    several processes that want it one fills it, and the others wait."""
    made_once(target, lambda: _build(target, fill))
    return target


def _build(target: Path, fill: Callable[[Path], None]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(work)
        work.rename(target)
    except OSError:
        if not target.is_dir():  # else a process of another machine, whom no lock reached, was faster: as good
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sha256(file: Path) -> str:
    """Hex digest of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def known_sha256(file: Path) -> str:
    """``sha256``, remembered in the cache for as long as the file's size and time of change stay as they are."""
    stat, path = file.stat(), str(file.resolve())
    stamp = {"file": path, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    entry = cache_dir() / "digests" / f"{hashlib.sha256(path.encode()).hexdigest()[:24]}.json"
    if entry.is_file():
        known = json.loads(entry.read_text())
        if {key: known.get(key) for key in stamp} == stamp:
            return known["sha256"]
    digest = sha256(file)
    write_atomic(entry, json.dumps(stamp | {"sha256": digest}))
    return digest

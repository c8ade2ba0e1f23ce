"""Files that are whole or absent: atomic replacement, and locks that die with their holder."""

import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


def write_atomic(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step: a reader, a kill or a full disk sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)  # mkstemp gives 0600, which other users of a shared folder could not read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new or renamed entry of ``folder`` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(path: Path) -> int | None:
    """Descriptor of an exclusive lock on ``path``, or None while someone alive holds it.

    The kernel drops the lock when its holder ends, however it ends: a dead claim needs no clean-up.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold ``path``'s lock, waiting for it; a wait is told."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = try_lock(path)
    if handle is None:
        log.info("another process holds %s: waiting for it", path)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def made_once(path: Path, make: Callable[[], object]) -> bool:
    """``path``, which ``make()`` puts there whole, made by one process however many want it: whether this call made it.

    The others wait and find it. Were each to make its own, twelve runs that start together would take twelve times the
    disk and the time. Where the maker dies, the next one makes it.
    """
    if path.exists():
        return False
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock):
        missing = not path.exists()
        if missing:
            make()
        lock.unlink(missing_ok=True)  # whoever still waits for it, or opens another, finds ``path``, and tidies up too
        return missing

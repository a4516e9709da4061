"""Files and directories that survive a crash: fsynced, published by one rename, their leftovers collected.

A directory is written as `.tmp-NAME-PID-TOKEN` and renamed to NAME. One that is replaced waits under `.old-`, one that
is deleted under `.del-`, so that a plain name never stands for half a directory. PID and TOKEN identify the writer:
what a dead one left is collected, what a live one is busy with is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

WRITE_BYTES = 1 << 22
FOREIGN_GRACE_SECONDS = 3600.0
"""A directory that a writer on another host left untouched for this long counts as abandoned."""

_MARKED = re.compile(r"\.(tmp|old|del)-(?P<name>.+)-(?P<pid>[1-9]\d{0,8})-(?P<token>[0-9a-f]{24})")


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and fsync it; the caller fsyncs the directory. OSError where it exists or the disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest[:WRITE_BYTES]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file durable that another library wrote."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory and its parents durably; nothing happens where it exists."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


@contextlib.contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A temporary directory beside `final` that takes its name if the block succeeds and is removed if it fails.

    The block fsyncs each file that it writes. A directory that already has the name is replaced: at every moment the
    old or the new one is whole on disk, under the name itself or where `collect` finds it. Raises OSError.
    """
    make_directory(final.parent)
    temporary = _marked(final, "tmp")
    try:
        temporary.mkdir()
        yield temporary
        fsync_directory(temporary)
        _publish(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, final: Path) -> None:
    aside = final.with_name(temporary.name.replace(".tmp-", ".old-", 1))
    try:
        if final.exists():
            os.rename(final, aside)
        os.rename(temporary, final)
    except BaseException:
        if aside.exists() and not final.exists():
            os.rename(aside, final)
        raise
    fsync_directory(final.parent)
    if aside.exists():
        remove_directory(aside)


def remove_directory(path: Path) -> None:
    """Delete a directory that is either whole under its name or gone, even if the process dies meanwhile."""
    plain = _MARKED.fullmatch(path.name)
    doomed = _marked(path.with_name(plain["name"]) if plain else path, "del")
    os.rename(path, doomed)
    fsync_directory(path.parent)
    # What cannot be deleted now is collected at the next start.
    shutil.rmtree(doomed, ignore_errors=True)


def collect(root: Path, is_whole: Callable[[Path], bool]) -> list[Path]:
    """Remove what dead writers left in `root`, first finishing or undoing replacements that they were in.

    An interrupted replacement is finished if the new directory `is_whole`, else undone. Returns the leftovers that were
    dealt with. What cannot be touched is logged, not raised.
    """
    if not root.is_dir():
        return []
    # By name: an aside (.old) comes before the temporary directory that may take its place.
    leftovers = [path for path in sorted(root.iterdir()) if _is_leftover(path)]
    return [path for path in leftovers if _collected(path, is_whole)]


def _is_leftover(path: Path) -> bool:
    marked = _MARKED.fullmatch(path.name)
    if marked is None or path.is_symlink() or not path.is_dir():
        return False
    return not _is_busy(path, int(marked["pid"]), marked["token"])


def _collected(path: Path, is_whole: Callable[[Path], bool]) -> bool:
    try:
        if path.name.startswith(".old-"):
            _settle_replacement(path, is_whole)
        if path.exists():
            shutil.rmtree(path)
    except OSError as error:
        log.warning("cannot remove the leftover %s: %s", path, error.strerror)
        return False
    log.info("collected the leftover %s", path.name)
    return True


def _settle_replacement(aside: Path, is_whole: Callable[[Path], bool]) -> None:
    marked = _MARKED.fullmatch(aside.name)
    assert marked is not None
    final = aside.with_name(marked["name"])
    if final.exists():
        return
    temporary = aside.with_name(aside.name.replace(".old-", ".tmp-", 1))
    os.rename(temporary if temporary.is_dir() and is_whole(temporary) else aside, final)
    fsync_directory(aside.parent)


def _marked(final: Path, mark: str) -> Path:
    pid = os.getpid()
    token = _host_tag() + _process_tag(pid) + secrets.token_hex(4)
    return final.with_name(f".{mark}-{final.name}-{pid}-{token}")


def _is_busy(path: Path, pid: int, token: str) -> bool:
    if token[:8] == _host_tag():
        return _is_running(pid, token[8:16])
    # The process table of another host cannot be seen.
    return time.time() - _last_change(path) < FOREIGN_GRACE_SECONDS


def _is_running(pid: int, tag: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # Under another user, who may hide what the tag is made of.
    return _process_tag(pid) == tag


def _last_change(path: Path) -> float:
    # A rename changes ctime only.
    with contextlib.suppress(FileNotFoundError):
        return max(entry.lstat().st_ctime for entry in (path, *path.iterdir()))
    return 0.0


def _host_tag() -> str:
    return _tag(socket.gethostname())


def _process_tag(pid: int) -> str:
    """Tells a process from a later one with the same id, after a restart of the machine or of a container too."""
    # Tags agree for all processes where the system tells no start times; then the id alone decides.
    return _tag(_read("/proc/sys/kernel/random/boot_id") + _process_start(pid))


def _process_start(pid: int) -> str:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # See proc(5): state first, start time 20th.
    if not fields:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]

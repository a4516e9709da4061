"""Files and directories that survive a crash: fsynced, and published by one rename.

They are written as `.tmp-NAME-TOKEN` and renamed to NAME; a directory to be deleted becomes `.del-NAME-TOKEN` first. So
a plain name never stands for half a directory, and the leftovers of a dead process are recognised by their names.
"""

import contextlib
import glob
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)
TEMPORARY = ".tmp-"
_LEFTOVER = re.compile(r"\.(tmp|del)-.+-[0-9a-f]{16}")
_LITTER = re.compile(r"(.*/)?(\.DS_Store|\._[^/]*|desktop\.ini|thumbs\.db)", re.IGNORECASE)


def is_litter(name: str) -> bool:
    """Return whether a file is one that file managers leave in the folders that they show, by its name or path."""
    return _LITTER.fullmatch(name) is not None


def fsync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory and its parents durably if they do not exist."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    fsync(path.parent)


@contextlib.contextmanager
def new_file(path: Path, *, if_absent: bool = False) -> Iterator[BinaryIO]:
    """Open a file that is fsynced and takes this name if the block succeeds; with `if_absent`, FileExistsError.

    What a link points to is replaced, not the link. A device, pipe or socket is written to: it must not become a file.
    """
    if path.exists() and not path.is_file() and not if_absent:
        with path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))  # unlike `resolve` no error for links in a circle
    # Each file has one writer: temporary files of its name were left by a dead one.
    for left in path.parent.glob(f"{TEMPORARY}{glob.escape(path.name)}-*"):
        left.unlink(missing_ok=True)
    temporary = _marked(path, "tmp")
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not if_absent or not _link(temporary, path):
            temporary.replace(path)
        fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `final` if the block, which fsyncs its files, succeeds."""
    make_directory(final.parent)
    temporary = _marked(final, "tmp")
    try:
        temporary.mkdir()
        yield temporary
        fsync(temporary)
        if final.exists():
            remove_directory(final)
        os.rename(temporary, final)
        fsync(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Delete a directory such that a crash leaves all of it or nothing under its name."""
    doomed = _marked(path, "del")
    os.rename(path, doomed)
    fsync(path.parent)
    shutil.rmtree(doomed, ignore_errors=True)  # or it stays as a leftover


def remove_leftovers(root: Path) -> None:
    """Remove the leftovers of dead processes from `root`; for its only writer, whose own would be removed too."""
    for path in list(root.glob(".*")):
        if _LEFTOVER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            log.info("removed the leftover %s", path.name)


def _link(temporary: Path, path: Path) -> bool:
    """Give a file a name that must be free; False where there are no hard links (FAT, many network mounts)."""
    try:
        os.link(temporary, path)
    except OSError:
        if path.exists():
            raise FileExistsError(path) from None
        return False
    return True


def _marked(path: Path, mark: str) -> Path:
    return path.with_name(f".{mark}-{path.name}-{secrets.token_hex(8)}")

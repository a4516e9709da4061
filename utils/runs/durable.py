"""Files and directories that survive a crash: fsynced, and published by one rename.

A directory is written as `.tmp-NAME-TOKEN` and renamed to NAME; one that is deleted becomes `.del-NAME-TOKEN` first. So
a plain name never stands for half a directory, and what a process left that died is known by its name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)
_LEFTOVER = re.compile(r"\.(tmp|del)-.+-[0-9a-f]{16}")


def fsync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
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
    fsync(path.parent)


@contextlib.contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Give a temporary directory beside `final`; it takes that name if the block succeeds and is removed if it fails.

    The block fsyncs each file that it writes. A directory that already has the name is deleted first. Raises OSError.
    """
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
    """Delete a directory that is either whole under its name or gone, even if the process dies meanwhile."""
    doomed = _marked(path, "del")
    os.rename(path, doomed)
    fsync(path.parent)
    # If it cannot be deleted now, it stays as a leftover.
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(root: Path) -> None:
    """Remove what processes that died left in `root`; only for its one writer, whose own would go too."""
    for path in list(root.glob(".*")):
        if _LEFTOVER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            log.info("removed the leftover %s", path.name)


def _marked(path: Path, mark: str) -> Path:
    return path.with_name(f".{mark}-{path.name}-{secrets.token_hex(8)}")

"""A part of a store: the objects below one name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from utils.cloud.store import Content, ObjectStore, safe_name
from utils.errors import CloudError


class Below(ObjectStore):
    """A store whose objects are those of another one below a name, which they do not carry here."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        """Raises DamagedError for a name that no store should hold."""
        super().__init__(store.policy)
        self._whole, self._prefix = store, f"{safe_name(name)}/"

    def __repr__(self) -> str:
        return f"Below({self._whole!r}, {self._prefix!r})"

    def check(self) -> bool:
        """Return whether the whole store can be reached now; see `ObjectStore.check`."""
        return self._whole.check()

    def cancel(self) -> None:
        """Make calls to the whole store give up, too."""
        super().cancel()
        self._whole.cancel()

    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool, deadline: float) -> Content | None:
        return self._whole._put(self._prefix + name, file, size, if_absent, deadline)

    def _content(self, name: str) -> Content | None:
        return self._whole._content(self._prefix + name)

    def _get(self, name: str, file: BinaryIO, limit: int, deadline: float) -> None:
        self._whole._get(self._prefix + name, file, limit, deadline)

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        for name, stored in self._whole._list(self._prefix + prefix):
            yield name.removeprefix(self._prefix), stored

    def _delete(self, name: str) -> None:
        self._whole._delete(self._prefix + name)

    def _translated(self, error: Exception) -> CloudError:
        return self._whole._translated(error)

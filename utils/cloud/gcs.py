"""A store in a Google Cloud Storage bucket, through the google-cloud-storage client."""

from __future__ import annotations

import base64
import http.client
import io
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import google.auth.exceptions
import requests
import urllib3.exceptions
from google.api_core.exceptions import GoogleAPICallError, NotFound, PreconditionFailed, RetryError
from google.api_core.retry import Retry
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse  # type: ignore[import-untyped]

from utils.cloud.store import (
    Listing,
    ObjectInfo,
    Retrier,
    RetryPolicy,
    Source,
    checksum,
    is_safe,
    new_file,
    opened,
    safe_name,
    source_checksum,
)
from utils.errors import CloudError, ConfigError, ConflictError, DamagedError, MissingError, UnavailableError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
PERMISSIONS = [f"storage.objects.{action}" for action in ("create", "delete", "get", "list")]
CHUNK_BYTES = 8 << 20
"""Size of a request of a resumable upload, a multiple of 256 KiB."""
SINGLE_REQUEST_BYTES = 8 << 20
"""The client sends files up to this size in one request, larger ones by a resumable upload."""

_PASSING = {408, 429}
_NETWORK = (
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    DataCorruption,
)
_UPLOAD_ANEW = {400, 409, 410}
"""Codes for a checksum that does not fit and for a resumable session that the server has lost track of."""


class GcsStore:
    """Objects in a bucket. STORAGE_EMULATOR_HOST is honoured by the client, which then needs no credentials."""

    def __init__(
        self,
        bucket: str,
        project: str | None = None,
        policy: RetryPolicy | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Raises ConfigError if there are no usable credentials."""
        self._name = bucket
        self._retrier = Retrier(policy or RetryPolicy())
        self._chunk_bytes = chunk_bytes
        try:
            self._client = storage.Client(project=project)
        except Exception as error:
            # Whatever went wrong, what the library says of it may quote the key.
            raise ConfigError(
                "expected credentials for Google Cloud in the file that GOOGLE_APPLICATION_CREDENTIALS names, "
                f"got none that can be used ({type(error).__name__})"
            ) from None
        self._bucket = self._client.bucket(bucket)

    def __repr__(self) -> str:
        return f"GcsStore({self._name!r})"

    def check(self) -> bool:
        """Return whether the bucket can be reached; one that cannot is logged only, since uploads will go on trying.

        Raises ConfigError for a bucket that is not there and for credentials that do not open it.
        """
        try:
            self._run(f"reach bucket {self._name}", self._check, self._retrier.policy.check_s)
        except UnavailableError as error:
            log.warning("%s; the run starts nevertheless and its uploads go on trying", error)
            return False
        except CloudError as error:
            raise ConfigError(f"expected a bucket to write to for CLOUD_BUCKET, got {self._name!r}: {error}") from None
        return True

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        """See ObjectStore."""
        safe_name(name)
        size, crc = source_checksum(source)

        def put(deadline: float) -> None:
            with opened(source) as file:
                self._put(name, file, size, crc, if_absent, deadline)

        self._run(f"store {name}", put, self._seconds(size))

    def holds(self, name: str, source: Source) -> bool:
        """See ObjectStore."""
        safe_name(name)
        size, crc = source_checksum(source)

        def same(_: float) -> bool:
            blob = self._stat(name)
            return blob is not None and (blob.size, _crc32c(blob)) == (size, crc)

        return self._run(f"look at {name}", same)

    def get(self, name: str, target: Path, limit: int) -> None:
        """See ObjectStore."""
        safe_name(name)
        self._run(f"fetch {name}", lambda deadline: self._get(name, target, limit, deadline), self._seconds(limit))

    def list(self, prefix: str) -> Listing:
        """See ObjectStore."""
        return self._run(f"list {prefix}", lambda _: self._list(prefix))

    def delete(self, name: str) -> None:
        """See ObjectStore."""
        safe_name(name)
        self._run(f"delete {name}", lambda _: self._delete(name))

    def cancel(self) -> None:
        """See ObjectStore."""
        self._retrier.cancelled.set()

    def _run(self, what: str, action: Callable[[float], Result], seconds: float | None = None) -> Result:
        def attempt(deadline: float) -> Result:
            try:
                return action(deadline)
            except CloudError:
                raise
            except OSError as error:
                if isinstance(error, _NETWORK):
                    raise _translated(error) from None
                raise CloudError(f"cannot {what}: {error.strerror or type(error).__name__}") from None
            except Exception as error:
                raise _translated(error) from None

        return self._retrier.run(what, attempt, seconds)

    def _timeout(self) -> tuple[float, float]:
        return self._retrier.policy.timeout_s, self._retrier.policy.timeout_s

    def _check(self, _: float) -> None:
        next(iter(self._client.list_blobs(self._bucket, max_results=1, timeout=self._timeout(), retry=None)), None)
        granted = self._bucket.test_iam_permissions(PERMISSIONS, timeout=self._timeout(), retry=None)
        if lacking := sorted(set(PERMISSIONS) - set(granted)):
            raise CloudError(f"the credentials lack {', '.join(lacking)}")

    def _seconds(self, size: int) -> float:
        return self._retrier.policy.deadline_s + size / self._retrier.policy.slow_bytes_per_s

    def _put(self, name: str, file: BinaryIO, size: int, crc: int, if_absent: bool, deadline: float) -> None:
        in_parts = size > SINGLE_REQUEST_BYTES
        blob = self._bucket.blob(name, chunk_size=self._chunk_bytes)
        try:
            blob.upload_from_file(
                _Guarded(file, lambda: self._retrier.keep_going(deadline)),
                size=size,
                content_type="application/octet-stream",
                if_generation_match=0 if if_absent else None,
                timeout=self._timeout(),
                checksum="crc32c",
                # A part is sent again by the client, so that one failure does not cost the whole file.
                retry=self._part_retry(deadline) if in_parts else None,
            )
        except PreconditionFailed:
            # Perhaps by an earlier attempt of ours whose answer was lost.
            self._require_same(name, size, crc)
            return
        except GoogleAPICallError as error:
            if error.code in _UPLOAD_ANEW or (in_parts and error.code == HTTPStatus.NOT_FOUND):
                raise UnavailableError(_status(error)) from None
            raise
        except ValueError as error:
            # The client's word for a server that kept another part of the file than it was sent.
            if isinstance(error, google.auth.exceptions.GoogleAuthError):
                raise
            raise UnavailableError("a resumable upload lost its place") from None
        if (blob.size, _crc32c(blob)) != (size, crc):
            raise UnavailableError("what is stored differs from what was sent")

    def _part_retry(self, deadline: float) -> Retry:
        policy = self._retrier.policy
        return Retry(
            predicate=lambda error: not self._retrier.cancelled.is_set() and _passes(error),
            initial=policy.first_wait_s,
            maximum=policy.longest_wait_s,
            timeout=max(deadline - time.monotonic(), 0.0),
        )

    def _require_same(self, name: str, size: int, crc: int) -> None:
        blob = self._stat(name)
        if blob is None:
            raise UnavailableError(f"{name} came and went")
        if (blob.size, _crc32c(blob)) != (size, crc):
            raise ConflictError(f"{name} exists with other content; does another run write under the same name?")

    def _stat(self, name: str) -> Any:
        return self._bucket.get_blob(name, timeout=self._timeout(), retry=None)

    def _get(self, name: str, target: Path, limit: int, deadline: float) -> None:
        known = self._stat(name)
        if known is None:
            raise MissingError(f"no object {name}")
        size = int(known.size)
        if size > limit:
            raise DamagedError(f"expected at most {limit} bytes in {name}, got {size}")
        with new_file(target) as file:
            received = _Limited(file, size, lambda: self._retrier.keep_going(deadline))
            # A fresh blob: the address comes from our own settings, not from what the server said. Raw: as stored,
            # so that nothing unpacks to more than its size.
            try:
                self._bucket.blob(name).download_to_file(
                    received,
                    raw_download=True,
                    timeout=self._timeout(),
                    checksum=None,
                    retry=None,
                    if_generation_match=known.generation,
                )
            except (NotFound, PreconditionFailed):
                raise UnavailableError(f"{name} changed meanwhile") from None
        with opened(target) as file:
            if checksum(file) != (size, _crc32c(known)):
                target.unlink()
                raise UnavailableError(f"expected {size} bytes with their checksum, got others")

    def _list(self, prefix: str) -> Listing:
        blobs = self._client.list_blobs(self._bucket, prefix=prefix, timeout=self._timeout(), retry=None)
        return sorted((_info(blob) for blob in blobs if is_safe(blob.name)), key=lambda info: info.name)

    def _delete(self, name: str) -> None:
        try:
            self._bucket.delete_blob(name, timeout=self._timeout(), retry=None)
        except NotFound:
            # Gone already, if not the bucket: which the next upload will tell.
            return


class _Guarded(io.RawIOBase):
    """Reads from a file as long as the guard lets it."""

    def __init__(self, file: BinaryIO, guard: Callable[[], None]) -> None:
        self._file, self._guard = file, guard

    def read(self, size: int = -1) -> bytes:
        self._guard()
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


class _Limited(io.RawIOBase):
    """Writes to a file as long as the guard lets it and no more comes than was announced."""

    def __init__(self, file: BinaryIO, limit: int, guard: Callable[[], None]) -> None:
        self._file, self._left, self._guard = file, limit, guard

    def write(self, data: Any) -> int:
        self._guard()
        self._left -= len(data)
        if self._left < 0:
            raise UnavailableError("more came than was announced")
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()


def _info(blob: Any) -> ObjectInfo:
    return ObjectInfo(blob.name, int(blob.size), blob.updated.timestamp() if blob.updated else 0.0)


def _crc32c(blob: Any) -> int:
    return int.from_bytes(base64.b64decode(blob.crc32c or ""), "big")


def _passes(error: BaseException) -> bool:
    """Return whether asking again may help."""
    if isinstance(error, RetryError):
        return error.cause is None or _passes(error.cause)
    if isinstance(error, GoogleAPICallError):
        return _is_passing(_code(error))
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return isinstance(error, google.auth.exceptions.TransportError) or bool(error.retryable)
    if isinstance(error, InvalidResponse):
        return _is_passing(error.response.status_code)
    return isinstance(error, _NETWORK)


def _is_passing(code: int) -> bool:
    return code in _PASSING or code >= HTTPStatus.INTERNAL_SERVER_ERROR


def _code(error: GoogleAPICallError) -> int:
    return int(error.code or 0)


def _translated(error: Exception) -> CloudError:
    """Return the error in words of our own: the library's may quote addresses, headers and keys."""
    return (UnavailableError if _passes(error) else CloudError)(_words(error))


def _words(error: BaseException) -> str:
    if isinstance(error, RetryError) and error.cause is not None:
        return _words(error.cause)
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return f"401 Unauthorized: the credentials are not accepted ({type(error).__name__})"
    return _status(error) if isinstance(error, GoogleAPICallError) else type(error).__name__


def _status(error: GoogleAPICallError) -> str:
    code = _code(error)
    advice = {
        401: ": the credentials are not accepted; check GOOGLE_APPLICATION_CREDENTIALS",
        403: ": the credentials may not do this; grant their account Storage Object Admin on the bucket",
        404: ": there is no such bucket; check CLOUD_BUCKET",
    }
    phrase = HTTPStatus(code).phrase if code in HTTPStatus._value2member_map_ else type(error).__name__
    return f"{code} {phrase}{advice.get(code, '')}"

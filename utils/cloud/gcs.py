"""A store in a Google Cloud Storage bucket, through the google-cloud-storage client."""

import base64
import http.client
import logging
import os
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, BinaryIO

import google.auth.exceptions
import requests
import urllib3.exceptions
from google.api_core.exceptions import GoogleAPICallError, NotFound, PreconditionFailed, RetryError
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import DataCorruption  # type: ignore[import-untyped]
from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

from utils.cloud.store import Content, ObjectStore, RetryPolicy, checksum
from utils.errors import CloudError, ConfigError, DamagedError, MissingError, UnavailableError

log = logging.getLogger(__name__)

PERMISSIONS = [f"storage.objects.{action}" for action in ("create", "delete", "get", "list")]
CHUNK_BYTES = 8 << 20  # of a request of a resumable upload, a multiple of 256 KiB
SINGLE_REQUEST_BYTES = 8 << 20  # larger files are sent by a resumable upload

_NETWORK = (
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    DataCorruption,
    RetryError,
    google.auth.exceptions.TransportError,
)
_UPLOAD_ANEW = {400, 409, 410}
"""Codes for a checksum that does not match and for a resumable session that the server has lost."""
_ADVICE = {
    401: ": the credentials are not accepted; check GOOGLE_APPLICATION_CREDENTIALS",
    403: ": the credentials may not do this; grant their account Storage Object Admin on the bucket",
    404: ": there is no such bucket; check CLOUD_BUCKET",
}


class GcsStore(ObjectStore):
    """Objects in a bucket, or in the emulator that STORAGE_EMULATOR_HOST names."""

    def __init__(self, bucket: str, project: str | None = None, policy: RetryPolicy | None = None) -> None:
        """Raises ConfigError if there are no usable credentials."""
        super().__init__(policy)
        try:
            client = storage.Client(project=project)
        except Exception as error:
            # The library's message may quote the key.
            raise ConfigError(
                "expected credentials for Google Cloud in the file that GOOGLE_APPLICATION_CREDENTIALS names, "
                f"got none that can be used ({type(error).__name__})"
            ) from None
        self._bucket = client.bucket(bucket)
        self._options = {"timeout": (self.policy.timeout_s, self.policy.timeout_s), "retry": None}

    def __repr__(self) -> str:
        return f"GcsStore({self._bucket.name!r})"

    def check(self) -> bool:
        name = self._bucket.name
        try:
            self._retry(f"reach bucket {name}", lambda _: self._require_access(), seconds=self.policy.check_s)
        except UnavailableError as error:
            log.warning("%s; the run starts nevertheless and its uploads keep trying", error)
            return False
        except CloudError as error:
            raise ConfigError(f"expected a bucket to write to for CLOUD_BUCKET, got {name!r}: {error}") from None
        return True

    def _require_access(self) -> None:
        next(iter(self._bucket.list_blobs(max_results=1, **self._options)), None)
        granted = self._bucket.test_iam_permissions(PERMISSIONS, **self._options)
        if lacking := sorted(set(PERMISSIONS) - set(granted)):
            raise CloudError(f"the credentials lack {', '.join(lacking)}")

    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool, deadline: float) -> Content | None:
        options = dict(self._options)
        if in_parts := size > SINGLE_REQUEST_BYTES:
            # The client retries a part, so that one failure does not cost the whole file.
            waits = DEFAULT_RETRY.with_delay(self.policy.first_wait_s, self.policy.longest_wait_s)
            options["retry"] = waits.with_timeout(max(deadline - time.monotonic(), 0.0))
        blob = self._bucket.blob(name, chunk_size=CHUNK_BYTES)
        try:
            blob.upload_from_file(
                _Guarded(file, size, lambda: self._keep_going(deadline)),
                size=size,
                content_type="application/octet-stream",
                if_generation_match=0 if if_absent else None,
                checksum="crc32c",
                **options,
            )
        except PreconditionFailed:
            raise FileExistsError from None
        except GoogleAPICallError as error:
            if error.code in _UPLOAD_ANEW or (in_parts and error.code == HTTPStatus.NOT_FOUND):
                raise UnavailableError(_words(error)) from None
            raise
        except ValueError as error:
            # The client raises it if the server kept another part of the file than it was sent.
            if isinstance(error, google.auth.exceptions.GoogleAuthError):
                raise
            raise UnavailableError("a resumable upload lost its place") from None
        return _content(blob)

    def _content(self, name: str) -> Content | None:
        blob = self._bucket.get_blob(name, **self._options)
        return None if blob is None else _content(blob)

    def _get(self, name: str, file: BinaryIO, limit: int, deadline: float) -> None:
        content = self._content(name)
        if content is None:
            raise MissingError(f"no object {name}")
        if content[0] > limit:
            raise DamagedError(f"expected at most {limit} bytes in {name}, got {content[0]}")
        received = _Guarded(file, content[0], lambda: self._keep_going(deadline))
        try:
            # A fresh blob: its address comes from our settings, not from the server. Raw: unpacked it could be larger.
            self._bucket.blob(name).download_to_file(received, raw_download=True, checksum=None, **self._options)
        except NotFound:
            raise UnavailableError(f"{name} changed meanwhile") from None
        file.seek(0)
        if checksum(file) != content:
            raise UnavailableError(f"expected {content[0]} bytes with their checksum, got others")

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        for blob in self._bucket.list_blobs(prefix=prefix, **self._options):
            yield blob.name, blob.updated.timestamp() if blob.updated else 0.0

    def _delete(self, name: str) -> None:
        # A missing bucket fails the next upload.
        self._bucket.delete_blobs([name], on_error=lambda _: None, **self._options)

    def _translated(self, error: Exception) -> CloudError:
        if isinstance(error, GoogleAPICallError):
            code = error.code or 0
            may_pass = code in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or code >= 500
        else:
            may_pass = isinstance(error, _NETWORK) or getattr(error, "retryable", False)
        return (UnavailableError if may_pass else CloudError)(_words(error))


class _Guarded:
    """A file of at most `limit` bytes; the guard may raise at each read and write."""

    def __init__(self, file: BinaryIO, limit: int, guard: Callable[[], None]) -> None:
        self._file, self._limit, self._guard = file, limit, guard

    def read(self, size: int = -1) -> bytes:
        self._guard()
        return self._file.read(size)

    def write(self, data: bytes) -> int:
        self._guard()
        if self._file.tell() + len(data) > self._limit:
            raise UnavailableError("more came than was announced")
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _content(blob: Any) -> Content:
    return int(blob.size), int.from_bytes(base64.b64decode(blob.crc32c or ""), "big")


def _words(error: BaseException) -> str:
    """Describe an error in our own words: the library's may quote addresses, headers and keys."""
    if isinstance(error, RetryError) and error.cause is not None:
        return _words(error.cause)
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return f"401 Unauthorized: the credentials are not accepted ({type(error).__name__})"
    if isinstance(error, GoogleAPICallError):
        code = int(error.code or 0)
        phrase = HTTPStatus(code).phrase if code in HTTPStatus._value2member_map_ else type(error).__name__
        return f"{code} {phrase}{_ADVICE.get(code, '')}"
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else type(error).__name__

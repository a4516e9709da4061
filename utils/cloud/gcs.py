"""A store in a Google Cloud Storage bucket, through the google-cloud-storage client."""

import base64
import http.client
import logging
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import google.auth.exceptions
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import DataCorruption  # type: ignore[import-untyped]
from google.cloud.storage.retry import DEFAULT_RETRY, _should_retry  # type: ignore[import-untyped]

from utils.cloud.store import Content, ObjectStore, RetryPolicy
from utils.errors import CloudError, ConfigError, MissingError, UnavailableError

log = logging.getLogger(__name__)

PERMISSIONS = [f"storage.objects.{action}" for action in ("create", "delete", "get", "list")]
CHUNK_BYTES = 8 << 20  # of a request of a resumable upload or a download, a multiple of 256 KiB
SINGLE_REQUEST_BYTES = 8 << 20  # larger files are sent by a resumable upload

_TRANSIENT = (TimeoutError, DataCorruption, RetryError, google.auth.exceptions.TransportError)
"""Errors that pass, beside those that the library takes for such."""
_UPLOAD_ANEW = {400, 409, 410, 412}
"""Codes for a checksum that does not match, a resumable session that the server has lost, an object that exists now."""
_ADVICE = {
    401: ": the credentials are not accepted; check GOOGLE_APPLICATION_CREDENTIALS",
    403: ": the credentials may not do this; grant their account Storage Object Admin on the bucket",
    404: ": there is no such bucket; check CLOUD_BUCKET",
}


class GcsStore(ObjectStore):
    """Objects in a bucket, or in the emulator that STORAGE_EMULATOR_HOST names."""

    def __init__(
        self, bucket: str, project: str | None = None, policy: RetryPolicy | None = None, below: str = ""
    ) -> None:
        """Raises ConfigError if there are no usable credentials."""
        super().__init__(policy, below)
        try:
            client = storage.Client(project=project)
        except Exception as error:
            # The library's message may quote the key.
            raise ConfigError(
                "expected credentials for Google Cloud in the file that GOOGLE_APPLICATION_CREDENTIALS names, "
                f"got none that can be used ({type(error).__name__})"
            ) from None
        self._bucket = client.bucket(bucket)
        self._once: dict[str, Any] = {"timeout": (self.policy.timeout_s, self.policy.timeout_s), "retry": None}
        # The client repeats a part of a transfer, so that one failure does not cost the whole file.
        waits = DEFAULT_RETRY.with_delay(self.policy.first_wait_s, self.policy.longest_wait_s)
        self._in_parts = {**self._once, "retry": waits.with_timeout(self.policy.deadline_s)}

    def check(self) -> bool:
        name = self._bucket.name
        try:
            self._retry(f"reach bucket {name}", self._require_access, self.policy.check_s)
        except UnavailableError as error:
            log.warning("%s; the run starts nevertheless and its uploads keep trying", error)
            return False
        except CloudError as error:
            raise ConfigError(f"expected a bucket to write to for CLOUD_BUCKET, got {name!r}: {error}") from None
        return True

    def _require_access(self) -> None:
        next(iter(self._bucket.list_blobs(max_results=1, **self._once)), None)
        granted = self._bucket.test_iam_permissions(PERMISSIONS, **self._once)
        if lacking := sorted(set(PERMISSIONS) - set(granted)):
            raise CloudError(f"cannot reach bucket {self._bucket.name}: the credentials lack {', '.join(lacking)}")

    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool) -> Content | None:
        is_resumable = size > SINGLE_REQUEST_BYTES
        options = self._in_parts if is_resumable else self._once
        blob, expected = self._bucket.blob(name, chunk_size=CHUNK_BYTES), 0 if if_absent else None
        try:
            blob.upload_from_file(file, size=size, if_generation_match=expected, checksum="crc32c", **options)
        except (GoogleAPICallError, ValueError) as error:
            # The client raises a ValueError if the server kept another part of the file than it was sent, but some of
            # its errors of credentials are one, too.
            code = getattr(error, "code", None)
            is_lost = code in _UPLOAD_ANEW or (is_resumable and code == http.client.NOT_FOUND)
            if is_lost or not isinstance(error, GoogleAPICallError | google.auth.exceptions.GoogleAuthError):
                raise UnavailableError(_words(error)) from None
            raise
        return _content(blob)

    def _content(self, name: str) -> Content | None:
        blob = self._bucket.get_blob(name, **self._once)
        return None if blob is None else _content(blob)

    def _reader(self, name: str) -> BinaryIO:
        # A fresh blob: its address comes from our settings, not from the server. Raw: unpacked it could be larger.
        return cast(BinaryIO, self._bucket.blob(name).open("rb", CHUNK_BYTES, raw_download=True, **self._in_parts))

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        for blob in self._bucket.list_blobs(prefix=prefix, **self._once):
            yield blob.name, blob.updated.timestamp() if blob.updated else 0.0

    def _delete(self, name: str) -> None:
        # A missing bucket fails the next upload.
        self._bucket.delete_blobs([name], on_error=lambda _: None, **self._once)

    def _translated(self, error: Exception) -> CloudError:
        if isinstance(error, GoogleAPICallError) and error.code == http.client.NOT_FOUND:
            return MissingError(_words(error))
        is_transient = isinstance(error, _TRANSIENT) or getattr(error, "retryable", False) or _should_retry(error)
        return (UnavailableError if is_transient else CloudError)(_words(error))


def _content(blob: Any) -> Content:
    return int(blob.size), base64.b64decode(blob.crc32c or "")


def _words(error: BaseException) -> str:
    """Describe an error in our own words: the library's may quote addresses, headers and keys."""
    if isinstance(error, RetryError) and error.cause is not None:
        return _words(error.cause)
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return f"401 Unauthorized: the credentials are not accepted ({type(error).__name__})"
    answered = getattr(getattr(error, "response", None), "status_code", None)
    code = error.code if isinstance(error, GoogleAPICallError) else answered
    if isinstance(code, int):
        return f"{int(code)} {http.client.responses.get(code, type(error).__name__)}{_ADVICE.get(code, '')}"
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else type(error).__name__

"""A store in a Google Cloud Storage bucket, through the google-cloud-storage client and its retries."""

import contextlib
import http.client
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.api_core.exceptions import GoogleAPICallError, NotFound, PreconditionFailed, RetryError
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import DataCorruption  # type: ignore[import-untyped]
from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

from utils.cloud.store import MAX_BYTES, ObjectStore, Source, require_content, rewound
from utils.errors import CloudError, ConfigError, DamagedError, MissingError, UnavailableError
from utils.runs.durable import new_file

log = logging.getLogger(__name__)

RETRY = DEFAULT_RETRY.with_delay(1.0, 30.0).with_timeout(600.0)  # of each request
CHECK_SECONDS = 30.0  # of retries at start-up
SILENCE_SECONDS = 60.0  # after which a connection counts as dead
PERMISSIONS = [f"storage.objects.{action}" for action in ("create", "delete", "get", "list")]
CHUNK_BYTES = 8 << 20  # of a request of a resumable upload, a multiple of 256 KiB

_ADVICE = {
    401: ": the credentials are not accepted; check GOOGLE_APPLICATION_CREDENTIALS",
    403: ": the credentials may not do this; grant their account Storage Object Admin on the bucket",
    404: ": there is no such bucket; check CLOUD_BUCKET",
}


class GcsStore(ObjectStore):
    """Objects in a bucket, or in the emulator that STORAGE_EMULATOR_HOST names."""

    def __init__(self, bucket: str, project: str | None = None, below: str = "") -> None:
        """Raises ConfigError if there are no usable credentials."""
        super().__init__(below)
        try:
            client = storage.Client(project=project)
        except Exception as error:
            # The library's message may quote the key.
            raise ConfigError(
                "expected credentials for Google Cloud in the file that GOOGLE_APPLICATION_CREDENTIALS names, "
                f"got none that can be used ({type(error).__name__})"
            ) from None
        self._bucket = client.bucket(bucket)

    def check(self) -> bool:
        name, waits = self._bucket.name, _waits(CHECK_SECONDS)
        try:
            with _translated(f"reach bucket {name}"):
                next(iter(self._bucket.list_blobs(max_results=1, **waits)), None)
                granted = self._bucket.test_iam_permissions(PERMISSIONS, **waits)
                if lacking := sorted(set(PERMISSIONS) - set(granted)):
                    raise CloudError(f"the credentials lack {', '.join(lacking)}")
        except UnavailableError as error:
            log.warning("%s; the run starts nevertheless and its uploads keep trying", error)
            return False
        except CloudError as error:
            raise ConfigError(f"expected a bucket to write to for CLOUD_BUCKET, got {name!r}: {error}") from None
        return True

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        blob = self._bucket.blob(self._full_name(name), chunk_size=CHUNK_BYTES)
        size = rewound(source).seek(0, io.SEEK_END)
        expected = 0 if if_absent else None
        with _translated(f"store {name}"):
            try:
                blob.upload_from_file(
                    rewound(source), size=size, if_generation_match=expected, checksum="crc32c", **_waits()
                )
            except PreconditionFailed:
                # The answer to an earlier attempt was lost, or another object is there.
                require_content(name, blob.download_as_bytes(**_waits()), source)

    def get(self, name: str, target: Path, limit: int = MAX_BYTES) -> None:
        full_name = self._full_name(name)
        with _translated(f"fetch {name}"):
            stored = self._bucket.get_blob(full_name, **_waits())
            if stored is None:
                raise MissingError(f"no object {name}")
            if stored.size > limit:
                raise DamagedError(f"expected at most {limit} bytes in {name}, got {stored.size}")
            # A fresh blob: its address comes from our settings, not from the server. Raw: unpacked it could be larger.
            blob = self._bucket.blob(full_name)
            with new_file(target) as file:
                blob.download_to_file(file, raw_download=True, checksum="crc32c", **_waits())

    def delete(self, name: str) -> None:
        # A missing bucket fails the next upload.
        with _translated(f"delete {name}"), contextlib.suppress(NotFound):
            self._bucket.delete_blob(self._full_name(name), **_waits())

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        with _translated(f"list {prefix}"):
            for blob in self._bucket.list_blobs(prefix=prefix, **_waits()):
                yield blob.name, blob.updated.timestamp()


def _waits(seconds: float | None = None) -> dict[str, Any]:
    """Return the client's arguments on how long to wait for a connection and to repeat a request."""
    return {"timeout": SILENCE_SECONDS, "retry": RETRY if seconds is None else RETRY.with_timeout(seconds)}


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise errors as CloudError in our own words: the library's may quote addresses, headers and keys."""
    try:
        yield
    except CloudError as error:
        raise type(error)(f"cannot {what}: {error}") from None
    except DataCorruption:
        raise DamagedError(f"cannot {what}: the checksum is another") from None
    except Exception as error:
        is_transient = isinstance(error, RetryError | TransportError | OSError)
        raise (UnavailableError if is_transient else CloudError)(f"cannot {what}: {_words(error)}") from None


def _words(error: BaseException) -> str:
    if isinstance(error, RetryError) and error.cause is not None:
        return f"{_words(error.cause)} (gave up)"
    if isinstance(error, GoogleAuthError):
        return f"401 Unauthorized: the credentials are not accepted ({type(error).__name__})"
    answered = getattr(getattr(error, "response", None), "status_code", None)
    code = error.code if isinstance(error, GoogleAPICallError) else answered
    if isinstance(code, int):
        return f"{int(code)} {http.client.responses.get(code, type(error).__name__)}{_ADVICE.get(code, '')}"
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else type(error).__name__

"""The object store that the environment names, and the key that opens it."""

import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from utils.cloud.store import LocalStore, ObjectStore
from utils.errors import ConfigError

logger = logging.getLogger(__name__)
KEY, KEY_CONTENTS = "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS_JSON"
_KEY_FILE = Path(".config", "erl-trader", "gcs-credentials.json")
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_cloud(environ: Mapping[str, str] = os.environ, *, below: str = "") -> ObjectStore | None:
    """Return the store that CLOUD_PROVIDER, CLOUD_BUCKET and CLOUD_PROJECT name, if any. Raises ConfigError.

    Args:
        below: prefix of all names in the store.
    """
    provider, bucket, project = (environ.get(f"CLOUD_{name}", "").strip() for name in ("PROVIDER", "BUCKET", "PROJECT"))
    if not provider and not bucket:
        return None
    if provider not in ("gcs", "local") or not bucket:
        raise ConfigError(
            f"expected CLOUD_PROVIDER=gcs or local with CLOUD_BUCKET, got {provider!r}, {bucket!r}; set both or neither"
        )
    if provider == "local":
        if not Path(bucket).is_absolute():
            raise ConfigError(f"expected CLOUD_BUCKET to be the absolute path of a mounted folder, got {bucket!r}")
        logger.info("cloud: uploads go to the folder %s", bucket)
        return LocalStore(Path(bucket), below)
    if not _BUCKET_NAME.fullmatch(bucket):
        raise ConfigError(f"expected CLOUD_BUCKET to be a bucket's name (without gs:// or a path), got {bucket!r}")
    _provide_key(environ)
    logger.info("cloud: uploads go to the bucket %s", bucket)
    from utils.cloud.gcs import GcsStore  # imported late: it takes a second, and most runs do not need it

    return GcsStore(bucket, project or None, below)


def _provide_key(environ: Mapping[str, str]) -> None:
    """Check the key file that the environment names, or write the key that it holds to a file and name that.

    Without either, the library looks for credentials where Google's own tools leave them.
    """
    path, contents = environ.get(KEY, ""), environ.get(KEY_CONTENTS, "")
    is_readable = os.access(path, os.R_OK)
    if contents and not is_readable:
        os.environ[KEY] = str(_write_key(contents))  # where the library reads it
    elif path and not is_readable:
        # People put the key itself there, which is not shown.
        named = re.fullmatch(r"[~./][\w~./ -]{0,250}|[\w.-]{1,100}\.json", path)
        got = f"{path!r}, which is absent or unreadable" if named else "another text"
        raise ConfigError(
            f"expected {KEY} to be the path of a readable file, got {got}; copy the key there, or put its contents "
            f"into {KEY_CONTENTS}"
        )


def _write_key(contents: str) -> Path:
    """Write a key to a file in the home folder that only its owner can read; return its path."""
    path = Path.home() / _KEY_FILE
    try:
        dict(json.loads(contents))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:  # mode 600
            file.write(contents)
        os.replace(file.name, path)
    except (TypeError, ValueError):
        raise ConfigError(
            f"expected the contents of a key file (JSON) in {KEY_CONTENTS}, got another text, which is not shown; if "
            "it should stand for a secret, create a secret of that name"
        ) from None
    except OSError as error:
        raise ConfigError(f"expected to keep the key of {KEY_CONTENTS} in {path}, got: {error.strerror}") from None
    return path

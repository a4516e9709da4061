"""The object store that the environment names."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from utils.cloud.store import LocalStore, ObjectStore, RetryPolicy
from utils.errors import ConfigError

logger = logging.getLogger(__name__)
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_cloud(environ: Mapping[str, str] = os.environ, policy: RetryPolicy | None = None) -> ObjectStore | None:
    """Return the store that CLOUD_PROVIDER, CLOUD_BUCKET and CLOUD_PROJECT name, if any. Raises ConfigError."""
    provider, bucket, project = (environ.get(f"CLOUD_{name}", "").strip() for name in ("PROVIDER", "BUCKET", "PROJECT"))
    if not provider:
        if bucket:
            raise ConfigError("expected CLOUD_PROVIDER=gcs or local with CLOUD_BUCKET, got none; set both or neither")
        return None
    if provider not in ("gcs", "local"):
        raise ConfigError(f"expected CLOUD_PROVIDER to be gcs or local, got {provider!r}")
    if not bucket:
        raise ConfigError(f"expected CLOUD_BUCKET with CLOUD_PROVIDER={provider}, got none; set it")
    if provider == "local":
        if not Path(bucket).is_absolute():
            raise ConfigError(f"expected CLOUD_BUCKET to be the absolute path of a mounted folder, got {bucket!r}")
        logger.info("cloud: uploads go to the folder %s", bucket)
        return LocalStore(Path(bucket), policy)
    if not _BUCKET_NAME.fullmatch(bucket):
        raise ConfigError(f"expected CLOUD_BUCKET to be a bucket's name (without gs:// or a path), got {bucket!r}")
    # The value is not shown: people put the key itself there.
    key = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if key and not os.access(key, os.R_OK):
        raise ConfigError("expected GOOGLE_APPLICATION_CREDENTIALS to be the path of a readable file, got another text")
    logger.info("cloud: uploads go to the bucket %s", bucket)
    from utils.cloud.gcs import GcsStore  # imported late: it takes a second, and most runs do not need it

    return GcsStore(bucket, project or None, policy)

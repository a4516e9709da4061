"""Faults of the cloud: the real client against a storage emulator on loopback, behind a proxy that misbehaves."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from benchmarks.faults.harness import Row, checkpoints_of, flags, folder, run_beside, run_here
from benchmarks.faults.proxy import FaultProxy, Kind, Request, emulator, running
from benchmarks.faults.whole_run import STOP_SECONDS
from utils.cloud import gcs
from utils.cloud.restore import restore_latest
from utils.cloud.store import open_cloud
from utils.cloud.sync import CloudSync
from utils.runs.checkpoint import encode_state, save_checkpoint

BUCKET = "the-bucket"
LARGE_NUMBERS = (17 << 20) // 4
"""Of a checkpoint whose tensors go by a resumable upload in three parts."""
SMALL_NUMBERS = 500
FOR_EVER = float("inf")


@dataclass(frozen=True)
class CloudFault:
    """A fault of the cloud, how often it occurs, and on which requests; a download meets it on the way back."""

    test: str
    kind: Kind
    matches: Callable[[Request], bool]
    times: int = 1
    code: int = 503
    numbers: int = SMALL_NUMBERS


def is_upload(request: Request) -> bool:
    """Return whether a request sends an object or a part of one."""
    return request.method in ("POST", "PUT")


def is_upload_of(ending: str) -> Callable[[Request], bool]:
    """Return what tells whether a request sends an object whose name ends so."""
    return lambda request: is_upload(request) and request.name.endswith(ending)


def is_second_part(request: Request) -> bool:
    """Return whether a request sends a later part of a resumable upload."""
    return request.method == "PUT" and not request.content_range.startswith("bytes 0-")


def is_download(request: Request) -> bool:
    """Return whether a request fetches an object's content."""
    return request.method == "GET" and "alt=media" in request.path


RECOVERED = (
    CloudFault("503 x 2", "status", is_upload, 2),
    CloudFault("429 x 2", "status", is_upload, 2, 429),
    CloudFault("connection reset x 2", "reset", is_upload, 2),
    CloudFault("a stall", "stall", is_upload_of("part.safetensors")),
    CloudFault("a lost acknowledgement", "lost_ack", is_upload_of("manifest.json")),
    CloudFault("503 in the middle of a resumable upload", "status", is_second_part, numbers=LARGE_NUMBERS),
    CloudFault("a truncated download", "truncate", is_download),
)


@contextlib.contextmanager
def bucket() -> Iterator[FaultProxy]:
    """Make an empty bucket behind a proxy, and point the client and the program to it by the environment."""
    with emulator(BUCKET) as upstream:
        proxy = FaultProxy(upstream)
        with running(proxy) as port:
            environ = {
                "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
                "CLOUD_PROVIDER": "gcs",
                "CLOUD_BUCKET": BUCKET,
            }
            with mock.patch.dict(os.environ, environ):
                os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
                yield proxy


@contextlib.contextmanager
def hasty(retry_seconds: float = 0.3, silence_seconds: float = 60.0) -> Iterator[None]:
    """Let the program give up on the cloud soon: what lasts ten minutes by default lasts a moment."""
    retry = gcs.RETRY.with_delay(0.02, 0.1).with_timeout(retry_seconds)
    with mock.patch.multiple(gcs, RETRY=retry, CHECK_SECONDS=0.3, SILENCE_SECONDS=silence_seconds):
        yield


def recovered(fault: CloudFault, times: int = 1) -> Row:
    """Meet a fault that passes; the stored and the fetched bytes must be right."""
    right = 0
    for _ in range(times):
        with bucket() as proxy, folder() as root, hasty(250.0, 1.0 if fault.kind == "stall" else 60.0):
            met = proxy.inject(fault.kind, fault.matches, fault.times, fault.code)
            right += _comes_back(root / "run", fault.numbers) and met.seen == fault.times
    measured = f"{right} recovered, every byte right"
    return Row(f"cloud: {fault.test}", times, "recovered, stored bytes right", measured, right == times)


def _comes_back(run: Path, numbers: int) -> bool:
    """Upload a checkpoint and fetch it again; return whether its bytes are the same."""
    weights = torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    state = encode_state({"part": {"weights": weights}})
    path = save_checkpoint(run / "checkpoints", 1, state, run_id=run.name, config_hash="none")
    store = open_cloud()
    assert store is not None
    with CloudSync(store, run) as sync:
        sync.submit(path)
        sync.drain(250.0)
    again = restore_latest(store, run.name, run / "restored")
    return again is not None and {item.name: item.read_bytes() for item in path.iterdir()} == {
        item.name: item.read_bytes() for item in again.iterdir()
    }


def endless_503(generations: int) -> Row:
    """Train with a bucket that never takes anything: from the start, or from the first upload on."""
    right = 0
    for matches in (is_upload, lambda _: True):
        with bucket() as proxy, folder() as runs, hasty():
            proxy.inject("status", matches, FOR_EVER)
            ended = run_here(*flags(runs), "--run", "one", "--generations", str(generations))
            is_whole = (runs / "one" / "summary.json").is_file() and max(checkpoints_of(runs, "one")) == generations
            right += ended.code == 1 and is_whole and "missing in the cloud: one/" in ended.shown
    measured = f"{right} trained to the end, exit 1, what is missing named"
    return Row("cloud: endless 503", 2, "training finishes, exit code 1", measured, right == 2)


def closed_doors() -> Row:
    """Start with 401, 403 and 404 from the bucket, and with a bucket that does not exist."""
    right = 0
    cases = {401: "credentials are not accepted", 403: "may not do this", 404: "no such bucket"}
    for code, says in cases.items():
        with bucket() as proxy, folder() as runs, hasty():
            proxy.inject("status", lambda _: True, FOR_EVER, code)
            right += _fails_at_start(runs, says)
    with bucket(), folder() as runs, hasty(), mock.patch.dict(os.environ, {"CLOUD_BUCKET": "missing-bucket"}):
        right += _fails_at_start(runs, "no such bucket")
    test, measured = "cloud: 401, 403, 404, missing bucket", f"{right} exit 2 at start with one clear error"
    return Row(test, 4, "fails at start, exit code 2", measured, right == 4)


def _fails_at_start(runs: Path, says: str) -> bool:
    ended = run_here(*flags(runs), "--run", "one")
    return ended.code == 2 and ended.says(says) and not (runs / "one").exists()


def sigterm_while_stalled() -> Row:
    """Send SIGTERM while an upload hangs: the machine is gone soon, so the run must not wait."""
    with bucket() as proxy, folder() as runs:
        stalled = proxy.inject("stall", is_upload_of(".safetensors"), FOR_EVER)
        process = run_beside(*flags(runs), "--run", "one", "--generations", "100")
        while process.is_alive() and not stalled.seen:
            time.sleep(0.01)
        started = time.perf_counter()
        process.terminate()
        process.join()
        seconds = time.perf_counter() - started
        saved = max(checkpoints_of(runs, "one"), default=0)
    is_ok = process.exitcode == 143 and seconds <= STOP_SECONDS and saved > 0
    measured = f"exit {process.exitcode} after {seconds:.1f} s, generation {saved} on disk"
    must_be = f"exit 143 within {STOP_SECONDS:.0f} s"
    return Row("cloud: SIGTERM while an upload hangs", 1, must_be, measured, is_ok)

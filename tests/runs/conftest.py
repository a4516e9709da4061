"""A run that tests of resuming compare with, one that they continue, and a bucket."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults import cloud
from benchmarks.faults.proxy import FaultProxy
from tests.tiny_run import keep_in, run, tiny_in, unjudged


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `cut` of two generations, the volume that it was uploaded to, and a run `whole` of three."""
    folder = tmp_path_factory.mktemp("trained")
    tiny = tiny_in(folder)
    with unjudged(), pytest.MonkeyPatch.context() as patch:
        assert run(tiny, "--run", "whole", "--generations", "3") == 0
        keep_in(folder / "volume", patch)
        assert run(tiny, "--run", "cut", "--generations", "2") == 0
    return folder


@pytest.fixture
def cut(trained: Path, tmp_path: Path) -> Path:
    """The settings file of a copy of that folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "tiny.toml"


@pytest.fixture
def bucket() -> Iterator[FaultProxy]:
    """An empty bucket behind a proxy, to which the environment points."""
    pytest.importorskip("gcp_storage_emulator", reason="the storage emulator is not installed")
    with cloud.bucket() as proxy:
        yield proxy

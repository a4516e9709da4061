"""A run that tests of resuming compare with, and one that they continue."""

from pathlib import Path

import pytest

from tests.tiny_run import TINY, run, unjudged


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `cut` of two generations, the volume that it was uploaded to, and a run `whole` of three."""
    folder = tmp_path_factory.mktemp("trained")
    tiny = folder / "tiny.toml"
    tiny.write_text(TINY)
    (folder / "volume").mkdir()
    with unjudged(), pytest.MonkeyPatch.context() as patch:
        assert run(tiny, "--run", "whole", "--generations", "3") == 0
        patch.setenv("CLOUD_PROVIDER", "local")
        patch.setenv("CLOUD_BUCKET", str(folder / "volume"))
        assert run(tiny, "--run", "cut", "--generations", "2") == 0
    return folder

"""The commands for a pod without the image, as its page states them: a lost pod, then a lost volume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.faults.harness import SMALL_RUN, outcome, whole_run
from tests.box.emulated import ROOT, Box

GENERATIONS = 3
FIRST, LATER = re.findall(r"(?s)```bash\n(.*?)```", (ROOT / "docs" / "box.md").read_text(encoding="utf-8"))
GIT = """
[ "$1" = pull ] && exit 0
mkdir "$3"
for name in {root}/*; do case $name in */runs) ;; *) ln -s "$name" "$3";; esac; done
"""
VENV = """
mkdir -p .venv/bin
echo 'PATH=$PWD/.venv/bin:$PATH' > .venv/bin/activate
ln -s {bin}/emulated-python .venv/bin/python
ln -s {bin}/emulated-pip .venv/bin/pip
"""
PYTHON = """
case $* in *--run*) set -- "$@" --config {small} --profile quick;; esac
exec {python} "$@"
"""


class Pod:
    """A pod around a volume: its commands are real but for the clone and the installation."""

    def __init__(self, folder: Path, volume: Path, bucket: Path, settings: Path) -> None:
        self.box, self.bucket = Box.fresh(folder, volume), bucket
        places = {"root": ROOT, "bin": folder / "bin", "small": settings, "python": sys.executable}
        for command, body in (("git", GIT), ("python3", VENV), ("emulated-python", PYTHON)):
            self.box.stub(command, body.format(**places))
        self.box.stub("emulated-pip", '[ "$*" = "install -r requirements.txt" ]')

    def call(self, commands: str, *, until: str = "") -> str:
        """Run commands of the page until the log has this text, or else until the program ends; return their output."""
        local = commands.replace("/workspace/key.json", "").replace("CLOUD_PROVIDER=gcs", "CLOUD_PROVIDER=local")
        local = local.replace("my-bucket", str(self.bucket)).replace("/workspace", str(self.box.volume))
        environment = self.box.environment()
        del environment["BOX_VOLUME"]
        # The log is shown once the program has ended, not while it starts.
        script = f"set -e\n{local}".replace("\ntail", "\nwait\ntail") + "wait\n"
        options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(["bash", "-c", script], start_new_session=True, **options)
        while until and process.poll() is None and until not in self.log:
            time.sleep(0.05)
        if until:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            return ""
        shown = process.communicate()[0]
        assert process.returncode == 0, shown
        return str(shown)

    @property
    def code(self) -> Path:
        return self.box.volume / "erl-trader"

    @property
    def log(self) -> str:
        file = self.code / "train.log"
        return file.read_text() if file.exists() else ""


@pytest.mark.usefixtures("restore_process")
def test_a_lost_pod_goes_on_from_its_volume_and_without_it_from_the_bucket(tmp_path: Path) -> None:
    settings, bucket = tmp_path / "small.toml", tmp_path / "bucket"
    settings.write_text(f"generations = {GENERATIONS}{SMALL_RUN}")
    bucket.mkdir()
    Pod(tmp_path / "first", tmp_path / "volume", bucket, settings).call(FIRST, until="Generation 1 of")
    second = Pod(tmp_path / "second", tmp_path / "volume", bucket, settings)
    assert "Result of the champion" in second.call(LATER)
    assert "WARNING" not in second.log and not (second.box.volume / "runs").exists()
    expected = whole_run(GENERATIONS, SMALL_RUN).outcome
    assert outcome(second.code / "runs", "first") == expected
    third = Pod(tmp_path / "third", tmp_path / "renewed", bucket, settings)
    third.call(FIRST.replace("--run first", "--resume"))
    assert "restored run first from the cloud" in third.log and "is complete: its 3 generations" in third.log
    assert outcome(third.code / "runs", "first") == expected
    assert "Generation 1 of 3" in (third.code / "runs" / "first" / "run.log").read_text()

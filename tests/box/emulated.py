"""A rented box, emulated: a root, a home and a volume in folders, and stubs for what only a container has."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "box"
HIDDEN = ("CLOUD_", "GOOGLE_", "RUNPOD_", "BOX_", "SERVE_")


@dataclass(frozen=True)
class Box:
    """A container on its first start, with or without an earlier one's volume."""

    root: Path
    volume: Path

    @classmethod
    def fresh(cls, folder: Path, volume: Path, driver: str | None = "580.95.05") -> Self:
        """Make an empty container around a volume; `driver` None is a machine without a GPU."""
        for name in ("run", "home", "bin"):
            (folder / name).mkdir(parents=True)
        volume.mkdir(exist_ok=True)
        for script in ("pre_start.sh", "post_start.sh"):
            (folder / script).symlink_to(SCRIPTS / script)
        box = cls(folder, volume)
        for command in ("service", "ssh-keygen"):
            box.stub(command, f'echo "{command} $*" >> {folder}/called')
        if driver is not None:
            box.stub("nvidia-smi", f"echo '{driver}'")
        return box

    def stub(self, command: str, body: str) -> None:
        path = self.root / "bin" / command
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        path = f"{self.root}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
        here = {"PATH": path, "HOME": f"{self.root}/home", "BOX_ROOT": str(self.root), "BOX_VOLUME": str(self.volume)}
        return {**own, **here, "OMP_NUM_THREADS": "1", **more}

    def start(self, script: str, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start a script of the box; its output comes together."""
        return subprocess.Popen(
            ["bash", str(SCRIPTS / script), *words],
            cwd=self.root,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, script: str, *words: str, **more: str) -> tuple[int, str]:
        """Run a script of the box; return its exit code and output."""
        process = self.start(script, *words, **more)
        shown = process.communicate(timeout=250)[0]
        return process.returncode, shown

    @property
    def log(self) -> str:
        """What training wrote to the volume so far."""
        path = self.volume / "train.log"
        return path.read_text() if path.exists() else ""

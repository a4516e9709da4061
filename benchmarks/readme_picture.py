"""The picture of the README: `python -m benchmarks.readme_picture` trains on the built-in market and keeps its chart.

The run is the README's first command with its default settings, in a temporary folder (about two CPU minutes). The
version and settings of the run are recorded beside the picture; a test fails once they are no longer the current ones.
"""

import argparse
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from main import main as program
from utils import VERSION
from utils.config.settings import to_dict
from utils.config.trader import profile_config

ROOT = Path(__file__).resolve().parents[1]
PICTURE, RECORD = "equity.png", "equity.json"


def record(picture: bytes) -> dict[str, str]:
    """Return what a picture made now is recorded with: version, SHA-256 of the settings and of the picture."""
    settings = json.dumps(to_dict(profile_config("quick")), sort_keys=True).encode()
    return {
        "version": VERSION,
        "settings": hashlib.sha256(settings).hexdigest(),
        "picture": hashlib.sha256(picture).hexdigest(),
    }


def draw(flags: Sequence[str] = ()) -> bytes:
    """Train on the built-in market and return the equity chart (PNG); `flags` are further ones of main.py."""
    # In a scratch folder: default data and runs are found relative to the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        code = program(["--profile", "quick", "--device", "cpu", "--run", "picture", *flags])
        if code != 0:
            raise SystemExit(code)
        return Path("runs", "picture", PICTURE).read_bytes()


def main(words: Sequence[str] | None = None) -> None:
    """Draw the picture and write it with its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the picture and its record")
    out: Path = parser.parse_args(words).out.resolve()
    picture = draw()
    (out / PICTURE).write_bytes(picture)
    (out / RECORD).write_text(json.dumps(record(picture), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The image follows the rules that can be checked without building it."""

import re

from tests.box.emulated import ROOT, SCRIPTS

TEXT = (SCRIPTS / "Dockerfile").read_text(encoding="utf-8")
CODE = re.sub(r"(?m)^#.*\n", "", TEXT).replace("\\\n", " ")
LINES = [line for line in CODE.splitlines() if line.strip()]
STEPS = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in LINES]
IN_SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.sh")}


def steps(word: str) -> list[str]:
    return [rest for name, rest in STEPS if name == word]


def test_the_base_is_pinned_and_fits_torch() -> None:
    (base,) = steps("FROM")
    found = re.fullmatch(r"nvidia/cuda:(\d+\.\d+)\.\d+-base-ubuntu24\.04", base)
    settings = dict(re.findall(r"(\w+)=(\S+)", " ".join(steps("ENV"))))
    assert found and found[1] == settings["BOX_CUDA"] and settings["NVIDIA_DISABLE_REQUIRE"] == "1"
    # What the scripts assume without the image's settings is what the image sets.
    for name in ("BOX_MIN_DRIVER", "BOX_CUDA"):
        assert f"${{{name}:-{settings[name]}}}" in IN_SCRIPTS["check_driver.sh"]
    torch = re.search(r"(?m)^torch==(\S+)$", (ROOT / "requirements-lock.txt").read_text())
    assert torch and f"torch {torch[1]} " in TEXT, "state the CUDA version that the locked torch is built for"


def test_there_are_no_secrets_and_no_hosts_of_registries() -> None:
    assert not re.search(r"(?i)(secret|token|password|private|credential)", CODE)
    assert "://" not in TEXT + "".join(IN_SCRIPTS.values())
    ignored = (SCRIPTS / "Dockerfile.dockerignore").read_text().splitlines()
    assert {".git", "runs", "*.json", "data/*.parquet"} <= set(ignored)

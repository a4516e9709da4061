"""Files about the project agree: version and changelog, requirements and lock file, hooks and CI."""

import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from utils import COMMITS, VERSION

ROOT = Path(__file__).parent.parent
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def lines(name: str) -> list[str]:
    """Requirements of a file, without comments and included files."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith(("#", "-r"))]


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[(.*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == VERSION
    assert sorted(versions, key=Version, reverse=True) == versions
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_commits_of_earlier_versions_are_in_the_history_and_in_the_docs() -> None:
    page = (ROOT / "docs" / "runs.md").read_text()
    rows = re.findall(r"^\| (\d[^ ,]+).* \| `git checkout (\w+)` \|$", page, re.MULTILINE)
    assert {f"{version}.0": commit for version, commit in rows} == COMMITS
    if git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip("no history")
    history = git("rev-list", "HEAD")
    for version, commit in COMMITS.items():
        assert re.search(f"^{commit}", history, re.MULTILINE)
        assert f'VERSION = "{version}"\n' in git("show", f"{commit}:utils/__init__.py")


def test_the_lock_file_pins_every_requirement_within_its_range() -> None:
    locked = {canonicalize_name(one.name): one for one in map(Requirement, lines("requirements-lock.txt"))}
    pins = {name: str(one.specifier).removeprefix("==") for name, one in locked.items()}
    # A local version, such as +cpu, fits one build only; an address fits one machine.
    assert all(re.fullmatch(r"[\w.]+", pin) for pin in pins.values())
    assert not any(one.url or name.startswith(("nvidia", "cuda", "triton")) for name, one in locked.items())
    wanted = [Requirement(line) for path in ROOT.glob("requirements*.txt") for line in lines(path.name)]
    assert len(wanted) > len(locked)
    for one in wanted:
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), one


def test_ci_installs_the_locked_versions() -> None:
    setting = CI.index('export PIP_CONSTRAINT="$PWD/requirements-lock.txt"')
    assert setting < CI.index('eval "$test_command"')


def test_hooks_run_what_ci_runs() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    hooks = re.findall(r"^ +entry: (.*)$", config, re.MULTILINE)
    assert hooks == re.findall(r"^\.venv/bin/(?:ruff|mypy).*$", CI, re.MULTILINE) and len(hooks) == 3
    assert config.count("language: system") == len(hooks) and "http" not in config

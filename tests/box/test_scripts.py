"""The box: its image, and its scripts: driver, environment, SSH, and the signal that reaches the run."""

import json
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.box.emulated import ROOT, SCRIPTS, Box

SECRET = '{"type": "service_account",\n "private_key": "-----BEGIN\\nit\'s $HOME \\"quoted\\""}'
SUPERVISOR = """
[ "$2" = box.supervise ] || exit 9
exec 9>>"$BOX_ROOT/run/erl-trader.pid"
flock 9
trap 'echo SIGTERM; kill $!; exit 143' TERM
echo -n $$ > "$BOX_ROOT/run/erl-trader.pid"
echo "supervising $*"
sleep 60 &
wait $!
"""
"""In place of python: it holds the lock and says when the signal has come."""


def commands_of(pid: int) -> list[str]:
    """Return the names of a process's children; one may end while it is asked."""
    names = list[str]()
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            names.append(child.name())
    return names


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box.fresh(tmp_path / "container", tmp_path / "volume")


def test_the_environment_is_there_over_ssh_and_private(box: Box) -> None:
    variables = {"GOOGLE_APPLICATION_CREDENTIALS_JSON": SECRET, "CLOUD_BUCKET": "my-bucket", "OTHER": "x"}
    for _ in range(2):  # the container's disk outlives a restart
        code, shown = box.call("pre_start.sh", **variables)
        assert code == 0 and "private_key" not in shown and "driver 580.95.05 runs CUDA 13.0" in shown
    file = box.root / "home" / ".box_environment"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (box.root / "home" / ".bashrc").read_text().count(".box_environment") == 1
    assert (box.volume / "runs").is_dir() and (box.volume / "data").is_dir()
    told = "import json, os; print(json.dumps(dict(os.environ)))"
    login = f'. "$HOME/.bashrc"; pwd; {shlex.quote(sys.executable)} -c {shlex.quote(told)}'
    bare = {"HOME": str(file.parent), "PATH": "/bin"}
    folder, found = subprocess.check_output(["bash", "-c", login], env=bare, text=True).splitlines()
    there = json.loads(found)
    assert there["GOOGLE_APPLICATION_CREDENTIALS_JSON"] == SECRET and there["CLOUD_BUCKET"] == "my-bucket"
    assert there["BOX_VOLUME"] == str(box.volume) and "OTHER" not in there and folder == str(ROOT)


@pytest.mark.parametrize(
    ("driver", "code", "says"),
    [
        ("580.65.06", 0, "driver 580.65.06 runs CUDA 13.0"),
        ("591.4", 0, "driver 591.4 runs CUDA 13.0"),
        ("570.195.03", 1, "needs driver >= 580 for CUDA 13.0, found 570.195.03: rent a machine with a newer one"),
        ("Failed to initialize NVML", 1, "found none that answers (Failed to initialize NVML)"),
        (None, 0, "no GPU here: training runs on the CPU"),
    ],
)
def test_the_driver_is_checked_in_one_line(tmp_path: Path, driver: str | None, code: int, says: str) -> None:
    box = Box.fresh(tmp_path / "container", tmp_path / "volume", driver)
    ended, shown = box.call("check_driver.sh")
    assert ended == code and says in shown and len(shown.splitlines()) == 1


def test_an_old_driver_leaves_ssh_and_starts_no_run(tmp_path: Path) -> None:
    box = Box.fresh(tmp_path / "container", tmp_path / "volume", driver="535.104.05")
    box.stub("python", f"touch {tmp_path}/trained")
    container = box.start("start.sh", PUBLIC_KEY="ssh-ed25519 AAAA me")
    while "sleep" not in commands_of(container.pid):  # its last command
        time.sleep(0.02)
    container.terminate()
    shown = container.communicate()[0]
    assert "service ssh start" in (box.root / "called").read_text()
    assert "needs driver >= 580 for CUDA 13.0, found 535.104.05" in shown and not (tmp_path / "trained").exists()
    keys = box.root / "home" / ".ssh" / "authorized_keys"
    assert keys.read_text() == "ssh-ed25519 AAAA me\n" and stat.S_IMODE(keys.stat().st_mode) == 0o600
    # By hand, too, it would train on the CPU for days.
    code, shown = box.call("post_start.sh", "--run", "one")
    assert code == 1 and "found 535.104.05" in shown and not (tmp_path / "trained").exists()


def test_sigterm_reaches_the_supervisor_before_the_container_ends(box: Box) -> None:
    box.stub("python", SUPERVISOR)
    container = box.start("start.sh")
    while "supervising" not in box.log:
        time.sleep(0.02)
    container.terminate()
    container.communicate()
    assert container.returncode == 128 + signal.SIGTERM and box.log.splitlines()[-1] == "SIGTERM"
    assert not (box.root / "called").exists()  # no key, no SSH


def test_nothing_is_resumed_where_that_is_switched_off(box: Box) -> None:
    box.stub("python", "touch trained")
    code, shown = box.call("post_start.sh", BOX_RESUME="0")
    assert code == 0 and "nothing is resumed" in shown and not (box.root / "trained").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_volume_starts_no_run_and_says_so(box: Box) -> None:
    box.stub("python", "touch trained")
    (box.volume / "train.log").symlink_to("/dev/full")
    code, shown = box.call("post_start.sh")
    assert code == 1 and "No space left on device" in shown and not (box.root / "trained").exists()


@pytest.mark.parametrize("is_box", [True, False])
def test_runs_and_data_lie_on_the_volume_of_a_box_and_nowhere_else(box: Box, is_box: bool) -> None:
    """A rented machine without the image, too, may have a volume at the same place."""
    told = "from utils.config.trader import DEFAULT_DATA, Config; print(Config().runs_dir, DEFAULT_DATA)"
    environment = box.environment(PYTHONPATH=str(ROOT), RUNPOD_POD_ID="abc")
    at = box.volume if is_box else Path()
    if not is_box:
        del environment["BOX_VOLUME"]
    shown = subprocess.check_output([sys.executable, "-c", told], env=environment, text=True).split()
    assert [Path(one) for one in shown] == [at / "runs", at / "data" / "stock_data.parquet"]


TEXT = (SCRIPTS / "Dockerfile").read_text(encoding="utf-8")
CODE = re.sub(r"(?m)^#.*\n", "", TEXT).replace("\\\n", " ")
IN_SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.sh")}


def steps(word: str) -> list[str]:
    """What follows the word in all instructions that begin with it."""
    return re.findall(rf"(?m)^{word}\s+(.*)$", CODE)


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

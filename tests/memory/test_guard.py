"""The memory limit follows machine and cgroups, and the guard compares with it."""

from pathlib import Path

import psutil
import pytest

from utils.errors import MemoryLimitReached
from utils.memory.guard import MB, MemoryGuard, memory_limit_mb


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


V1 = "9:name=systemd:/\n4:memory,hugetlb:/docker/abc\n0::/"
V2 = "0::/system.slice/run.service"
CGROUPS = {
    "v2 tightest": (V2, {"system.slice/memory.max": 300, "system.slice/run.service/memory.max": "max"}, 300),
    "v2 host path not visible": ("0::/../other", {"memory.max": 400}, 400),
    "v1": (V1, {"memory/memory.limit_in_bytes": 120}, 120),
    "v1 without limit": (V1, {"memory/memory.limit_in_bytes": 9223372036854771712 / MB}, None),
    "junk": ("nonsense\n1:memory", {"memory.max": "", "memory/memory.limit_in_bytes": "-1"}, None),
}


@pytest.mark.parametrize(("membership", "files", "limit_mb"), CGROUPS.values(), ids=CGROUPS)
def test_limit_is_read_from_cgroup_files(
    tmp_path: Path, membership: str, files: dict[str, float | str], limit_mb: float | None
) -> None:
    write(tmp_path / "self", membership)
    for name, value in files.items():
        write(tmp_path / "fs" / name, value if isinstance(value, str) else str(int(value * MB)))
    machine_mb = psutil.virtual_memory().total / MB
    assert memory_limit_mb(tmp_path / "fs", tmp_path / "self") == pytest.approx(limit_mb or machine_mb)


def test_guard_compares_resident_memory_with_its_limit() -> None:
    MemoryGuard(limit_mb=1e9).check()
    assert MemoryGuard().limit_mb == pytest.approx(0.9 * memory_limit_mb())
    with pytest.raises(MemoryLimitReached, match="exceeds the limit of 1 MB"):
        MemoryGuard(limit_mb=1).check()

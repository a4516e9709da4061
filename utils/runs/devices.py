"""The device and the CPU threads of tensor operations."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

logger = logging.getLogger(__name__)
_CARDS = (Path("/dev"), "nvidia[0-9]*"), (Path("/proc/driver/nvidia/gpus"), "*")
"""Folders and patterns of the files by which the driver shows its cards."""
_BUILD = "--force-reinstall 'torch>=2.10,<2.14'"
"""The build of torch for CUDA, on Linux."""


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the CUDA device where there is one, which then computes in fixed order.

    Warns where `auto` leaves an NVIDIA card idle since this torch cannot use it.
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto" and not has_cuda and _has_idle_card():
        remedy = f"is built without CUDA: {sys.executable} -m pip install {_BUILD}"
        if torch.version.cuda:
            remedy = f"is built for CUDA {torch.version.cuda}: renew the driver, or install a build for an older one"
        logger.warning(
            "this machine has an NVIDIA card, but everything runs on the CPU, for torch %s %s; or choose --device cpu",
            torch.__version__,
            remedy,
        )
    device = torch.device(("cuda" if has_cuda else "cpu") if name == "auto" else name)
    if device.type == "cuda":
        _fix_order()
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    logger.debug("device: %s (%s)", device, label)
    return device


def _fix_order() -> None:
    """Let the same card give the same bits again: no sum whose order is that in which threads finish.

    A kernel that has no such form is warned of, not refused: the run is then repeated to rounding. Memory is not filled
    beforehand, which torch would do to show what reads it unwritten. (PyTorch, "Reproducibility".)
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts, at the first product
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _has_idle_card() -> bool:
    """Tell whether there is an NVIDIA card that the user has not hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    if any(folder.is_dir() and any(folder.glob(pattern)) for folder, pattern in _CARDS):
        return True
    program = shutil.which("nvidia-smi")  # on Windows, and in its Linux, there are no such files
    if program is None:
        return False
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and listed.stdout.startswith("GPU ")


def note_other_device(before: str | None, now: torch.device) -> None:
    """Log what is not bit-equal where a run goes on on another kind of device than `before`; None: not known."""
    if before is not None and torch.device(before).type != now.type:
        logger.info(
            "trained on %s before, goes on on %s: the same random numbers are drawn, but what the device computes is "
            "rounded otherwise, so that the run is not bit-equal to one on either",
            before,
            now,
        )


def choose_threads(wanted: int) -> None:
    """Set the CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""
    if wanted:
        torch.set_num_threads(wanted)
    logger.debug("CPU threads: %d", torch.get_num_threads())

"""The device and the CPU threads of tensor operations."""

import logging
import os
import sys
from pathlib import Path

import torch

from utils.errors import ConfigError

logger = logging.getLogger(__name__)
_CARDS = (Path("/dev"), "nvidia[0-9]*"), (Path("/proc/driver/nvidia/gpus"), "*")
"""Folders and patterns of the driver's files, one per card."""
_BUILD = "--force-reinstall 'torch>=2.10,<2.14'"  # the CUDA build of torch on Linux


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` prefers CUDA, and warns if this torch cannot use an NVIDIA card."""
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
    if device.type == "cuda" and not has_cuda:
        raise ConfigError(f"--device: expected cpu or auto on a machine without CUDA, got {name!r}")
    if device.type == "cuda":
        _require_determinism()
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    logger.debug("device: %s (%s)", device, label)
    return device


def _require_determinism() -> None:
    """Use deterministic kernels, so that the same card gives the same bits (PyTorch, "Reproducibility").

    A kernel without a deterministic form warns: such runs repeat up to rounding. New memory is not filled, which torch
    would do to expose reads of uninitialised memory.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts, at the first product
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _has_idle_card() -> bool:
    """Return whether there is an NVIDIA card that the user has not hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return any(folder.is_dir() and any(folder.glob(pattern)) for folder, pattern in _CARDS)


def choose_threads(wanted: int) -> None:
    """Set the CPU threads of tensor operations; 0 leaves torch's choice, one per physical core."""
    if wanted:
        torch.set_num_threads(wanted)
    logger.debug("CPU threads: %d", torch.get_num_threads())

"""The device and the CPU threads of tensor operations."""

import logging
import os
from pathlib import Path

import torch

from utils.errors import ConfigError

logger = logging.getLogger(__name__)
_CARDS = (Path("/dev"), "nvidia[0-9]*"), (Path("/proc/driver/nvidia/gpus"), "*")
"""Folders and patterns of the driver's files, one per card."""


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` prefers CUDA, and warns if this torch cannot use an NVIDIA card."""
    has_cuda = torch.cuda.is_available()
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    if name == "auto" and not has_cuda and not is_hidden and any([*folder.glob(pattern)] for folder, pattern in _CARDS):
        logger.warning(
            "this machine has an NVIDIA card that torch %s (CUDA %s) cannot use: everything runs on the CPU; install a "
            "build of torch for the card's driver, or choose --device cpu",
            torch.__version__,
            torch.version.cuda or "none",
        )
    device = torch.device(("cuda" if has_cuda else "cpu") if name == "auto" else name)
    if device.type == "cuda" and not has_cuda:
        raise ConfigError(f"--device: expected cpu or auto on a machine without CUDA, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"--device: expected one of {count} CUDA devices, from cuda:0 on, got {name!r}")
    if device.type == "cuda":
        # Deterministic kernels: the same card gives the same bits (PyTorch, "Reproducibility"). One without a
        # deterministic form warns. New memory is not filled, as torch would to expose reads of uninitialised memory.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts, at the first product
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    logger.debug("device: %s (%s)", device, torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU")
    return device


def choose_threads(wanted: int) -> None:
    """Set the CPU threads of tensor operations; 0 leaves torch's choice, one per physical core."""
    if wanted:
        torch.set_num_threads(wanted)
    logger.debug("CPU threads: %d", torch.get_num_threads())

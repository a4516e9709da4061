"""The device and the CPU threads of tensor operations."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the CUDA device where there is one."""
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    logger.debug("device: %s (%s)", device, label)
    return device


def choose_threads(wanted: int) -> None:
    """Set the CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""
    if wanted:
        torch.set_num_threads(wanted)
    logger.debug("CPU threads: %d", torch.get_num_threads())

"""Device, CPU threads and random numbers of a run: one seed, independent named streams, and their state."""

import hashlib
import logging
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
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
    if device.type == "cuda":
        if not has_cuda:
            raise ConfigError(f"--device: expected cpu or auto on a machine without CUDA, got {name!r}")
        if (device.index or 0) >= (count := torch.cuda.device_count()):
            raise ConfigError(f"--device: expected one of {count} CUDA devices, from cuda:0 on, got {name!r}")
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


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch (CUDA included) from one integer >= 0."""
    words = np.random.SeedSequence(seed).generate_state(4)
    random.seed(seed)
    np.random.seed(words)
    torch.manual_seed(seed)


def named_generator(seed: int, name: str) -> torch.Generator:
    """Return an independent CPU generator for one purpose; its stream is a function of (seed, name) alone."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    sequence = np.random.SeedSequence(seed, spawn_key=words)
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))


def random_state() -> dict[str, Any]:
    """Return the state of the global CPU generators as JSON values and a uint8 tensor; nothing draws on CUDA."""
    version, words, gauss_next = random.getstate()
    numpy_state: Any = np.random.get_state()
    _, key, pos, has_gauss, gauss = numpy_state
    return {
        "python": {"version": version, "words": list(words), "gauss_next": gauss_next},
        "numpy": {"key": key.tolist(), "pos": pos, "has_gauss": has_gauss, "gauss": gauss},
        "torch": torch.get_rng_state(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned."""
    python, numpy_ = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss_next"]))
    key = np.array(numpy_["key"], dtype=np.uint32)
    np.random.set_state(("MT19937", key, numpy_["pos"], numpy_["has_gauss"], numpy_["gauss"]))
    torch.set_rng_state(state["torch"].cpu())

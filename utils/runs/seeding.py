"""Random numbers: one seed for a run, independent named streams, and their state for checkpoints."""

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


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

"""Random streams: repeatable, independent by name, and restored exactly from plain data."""

import json
import random
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.runs.devices import named_generator, random_state, seed_everything, set_random_state

seeds = st.integers(0, 2**63 - 1)
names = st.text(max_size=12)


@pytest.fixture(scope="module", autouse=True)
def undisturbed() -> Iterator[None]:
    """Uploads that an earlier test left waiting draw their waits from another generator than Python's global one."""
    with mock.patch("google.api_core.retry.retry_base.random", random.Random()):
        yield


def draws(count: int) -> list[list[list[float]]]:
    """Numbers of each global generator, several times; an odd count of normals leaves a cached one behind."""
    return [
        [[random.random(), random.gauss(0, 1)], np.random.standard_normal(3).tolist(), torch.randn(3).tolist()]
        for _ in range(count)
    ]


@settings(max_examples=20)
@given(seeds, st.integers(0, 5))
def test_state_restores_every_generator_through_json(seed: int, drawn_before: int) -> None:
    seed_everything(seed)
    draws(drawn_before)
    state = random_state()
    torch_state = state.pop("torch")
    saved = json.dumps(state)
    assert torch_state.dtype == torch.uint8
    expected = draws(3)
    set_random_state({**json.loads(saved), "torch": torch_state})
    assert draws(3) == expected and expected[0] != expected[1]
    seed_everything(seed)
    assert draws(drawn_before + 3)[drawn_before:] == expected, "the same seed gives the same numbers"


@given(seeds, names, names)
def test_named_streams_depend_on_seed_and_name_alone(seed: int, name: str, other: str) -> None:
    expected = torch.rand(4, generator=named_generator(seed, name))
    torch.rand(7, generator=named_generator(seed, other))
    torch.rand(3)
    assert torch.equal(torch.rand(4, generator=named_generator(seed, name)), expected)
    same = torch.equal(torch.rand(4, generator=named_generator(seed, other)), expected)
    assert same == (name == other)


def test_named_streams_are_the_same_on_every_platform() -> None:
    assert named_generator(7, "windows").initial_seed() == 8028201654048883625

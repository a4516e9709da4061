"""The device that `auto` chooses, and a card that torch cannot use."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from utils.errors import ConfigError
from utils.runs import devices
from utils.runs.devices import choose_device


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a card; returns the folder in which the driver would show one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "_CARDS", ((tmp_path, "nvidia[0-9]*"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def warnings_of(name: str, caplog: pytest.LogCaptureFixture) -> str:
    """What choosing a device warns of."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert choose_device(name) == torch.device("cpu")
    return caplog.text


def test_no_card_no_warning(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    (bare / "nvidiactl").touch()
    assert not warnings_of("auto", caplog)


@pytest.mark.parametrize(
    ("build", "cause"), [(None, "-m pip install --force-reinstall"), ("13.0", "CUDA 13.0: renew the driver")]
)
def test_an_idle_card_is_told_with_the_command_that_helps(
    bare: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, build: str, cause: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    (bare / "nvidia0").touch()
    told = warnings_of("auto", caplog)
    assert cause in told
    assert not warnings_of("cpu", caplog)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not warnings_of("auto", caplog)


@pytest.fixture
def restore_order() -> Iterator[None]:
    """Undo what a CUDA device sets for the process."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with mock.patch.dict(os.environ):
        yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = filled


def test_a_card_computes_in_fixed_order_and_a_cpu_is_left_alone(
    restore_order: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device: expected cpu or auto on a machine without CUDA, got 'cuda:0'"):
        choose_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    choose_device("cpu")
    assert not torch.are_deterministic_algorithms_enabled() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    choose_device("cuda:1")
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    choose_device("cuda")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_the_command_names_the_torch_that_is_required() -> None:
    required = (Path(__file__).parents[2] / "requirements.txt").read_text().splitlines()
    assert any(line in devices._BUILD for line in required if line.startswith("torch"))

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


def test_an_idle_card_is_told_once_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "_CARDS", ((tmp_path, "nvidia[0-9]*"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def warnings_of(name: str) -> str:
        caplog.clear()
        assert choose_device(name) == torch.device("cpu")
        return "".join(record.message for record in caplog.records if record.levelno >= logging.WARNING)

    (tmp_path / "nvidiactl").touch()
    assert not warnings_of("auto")
    (tmp_path / "nvidia0").touch()
    assert f"torch {torch.__version__}" in warnings_of("auto")
    assert not warnings_of("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not warnings_of("auto")


@pytest.fixture
def restore_order() -> Iterator[None]:
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
    for name, answer in (("is_available", True), ("get_device_name", "a card"), ("device_count", 2)):
        monkeypatch.setattr(torch.cuda, name, mock.Mock(return_value=answer))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    choose_device("cpu")
    assert not torch.are_deterministic_algorithms_enabled() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    with pytest.raises(ConfigError, match="expected one of 2 CUDA devices, from cuda:0 on, got 'cuda:2'"):
        choose_device("cuda:2")
    choose_device("cuda:1")
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    choose_device("cuda")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"

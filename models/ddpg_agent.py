"""One agent, usable alone: it acts on the observations of an environment, and can be saved and loaded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from data.market import MarketTensors
from models.networks import AgentNetworks, DayEncoding
from utils.config.trader import NetworkConfig
from utils.errors import ConfigError


class DDPGAgent:
    """A market encoder, an actor and critics; the same networks as a population of one."""

    def __init__(
        self, config: NetworkConfig | None = None, context_days: int = 504, *, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config or NetworkConfig()
        self.networks = AgentNetworks(1, self.config, context_days).to(device).requires_grad_(False)
        self._encoded: tuple[MarketTensors, int, DayEncoding] | None = None

    @property
    def context_days(self) -> int:
        """Days of history that an action depends on, the observed day included."""
        return self.networks.context_days

    @torch.no_grad()
    def encode(self, market: MarketTensors, first_day: int, last_day: int) -> DayEncoding:
        """Encode the days `first_day`..`last_day`, inclusive.

        Raises:
            ValueError: a day has less than the full context before it.
        """
        if not self.context_days - 1 <= first_day <= last_day < market.days:
            raise ValueError(
                f"expected days within {self.context_days - 1}..{market.days - 1}, which have a full context of "
                f"{self.context_days} days, got {first_day}..{last_day}"
            )
        inputs = market.inputs[:, first_day - self.context_days + 1 : last_day + 1]
        return self.networks.encode_distinct(inputs, market.investable)

    def act(
        self, observation: Mapping[str, NDArray[np.float32]], market: MarketTensors, day: int
    ) -> NDArray[np.float32]:
        """Decide, without exploration, on an observation of `TradingEnvironment`.

        The history of the market is the encoder's business and is looked up: `day` is the index of the observed day
        (`info["day_index"]`). Days are encoded in blocks, each once.

        Returns:
            (investable, 2): coefficient in [0, 10], sale target in [10, 50] percent.
        """
        first_day, encoding = self._encoded_block(market, day)
        device = encoding.stocks.device
        positions = np.concatenate((observation["portfolio"], observation["exits"]), axis=-1)
        with torch.no_grad():
            stocks, summary = encoding.at(torch.tensor([[day - first_day]], device=device))
            action: Tensor = self.networks.actor(
                stocks,
                summary,
                torch.from_numpy(positions)[None, None].to(device),
                torch.from_numpy(observation["account"])[None, None].to(device),
            )
        return action[0, 0].cpu().numpy()

    def _encoded_block(self, market: MarketTensors, day: int, block_days: int = 64) -> tuple[int, DayEncoding]:
        known = self._encoded
        if known is None or known[0] is not market or not known[1] <= day < known[1] + known[2].stocks.shape[1]:
            last_day = min(day + block_days, market.days) - 1
            known = self._encoded = (market, day, self.encode(market, day, last_day))
        return known[1], known[2]

    def forget_encodings(self) -> None:
        """Drop what `act` has encoded; call it after the networks have changed."""
        self._encoded = None

    def save(self, path: Path | str) -> None:
        """Write networks and their configuration to one safetensors file."""
        metadata = {"network": json.dumps(dataclasses.asdict(self.config)), "context_days": str(self.context_days)}
        save_file({name: t.contiguous() for name, t in self.networks.state_dict().items()}, path, metadata=metadata)

    @classmethod
    def load(cls, path: Path | str, *, device: torch.device | str = "cpu") -> DDPGAgent:
        """Read an agent that `save` wrote.

        Raises:
            ConfigError: the file is missing or is not such an agent.
        """
        try:
            config, context_days = _read_metadata(path)
            agent = cls(config, context_days, device=device)
            agent.networks.load_state_dict(load_file(path, device=str(device)))
        except (OSError, SafetensorError, ConfigError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"expected an agent saved by DDPGAgent.save, got {path}: {' '.join(str(error).split())}"
            ) from error
        return agent


def _read_metadata(path: Path | str) -> tuple[NetworkConfig, int]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    return NetworkConfig(**json.loads(metadata["network"])), int(metadata["context_days"])

"""One agent, usable alone: it acts on the observations of an environment, and can be saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from data.market import Market
from models.cash_value import CashValue, accounts_of
from models.inputs import INPUTS, Float32Array, TradeInputs
from models.responses import Responses
from models.trader import Outlook, Traders, decide
from utils.config.settings import from_dict
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError

MOST_CHANCE = 0.001
"""Chance of luck at which what an agent expects counts as evidence."""


@dataclass(frozen=True)
class Evidence:
    """The chances that critics without skill foresee as much of results on days that they were not fitted to.

    Both are looked at, and allow for it.
    """

    choice: float
    """Of the stocks of a day, by rank."""
    timing: float
    """Of the means of days."""

    @property
    def is_there(self) -> bool:
        """Tell whether either is too small for luck."""
        return self.smallest <= MOST_CHANCE

    @property
    def smallest(self) -> float:
        """Return the smaller chance."""
        return min(self.choice, self.timing)

    def __str__(self) -> str:
        return f"chance of luck {self.choice:.3f} in choice, {self.timing:.3f} in timing, {MOST_CHANCE:g} asked"


@dataclass(frozen=True)
class DDPGAgent:
    """A critic of trades with its inputs, a value of cash, and the terms by which it orders."""

    inputs: TradeInputs
    traders: Traders
    """Of one agent."""
    cash_value: CashValue
    rules: EnvironmentConfig
    """Under which it was trained."""
    evidence: Evidence
    """Of its critic; where there is none, it expects nothing of any stock and holds the market, stock by stock."""

    @property
    def device(self) -> torch.device:
        """Device of what it decides by."""
        return self.cash_value.weights.device

    def outlook(self, market: Market, x: Float32Array | Tensor | None = None) -> Outlook:
        """Return what it expects of the orders of all days of a market.

        Args:
            x: (days, n, inputs) of the market, where they are known.
        """
        tradable = torch.from_numpy(np.isfinite(market.close)).to(self.device)
        if not self.evidence.is_there:
            return Outlook.in_turn(tradable, self.rules.max_new_positions_per_day)
        x = torch.as_tensor(self.inputs.of(market) if x is None else x, device=self.device)
        expected = x @ self.traders.weights[0].float()
        return Outlook.of(expected[None], tradable)

    def act(self, observation: Mapping[str, NDArray[np.float32]], outlook: Outlook, day: int) -> NDArray[np.float32]:
        """Decide on an observation of `TradingEnvironment`.

        Args:
            outlook: of the environment's market, by `outlook`, once for all its days.
            day: index of the observed day (`info["day_index"]`).

        Returns:
            (investable, 2): coefficient in [0, 10], sale target in [10, 50] percent.
        """
        positions = np.concatenate((observation["portfolio"], observation["exits"]), axis=-1)
        return self.decide(torch.from_numpy(positions), torch.from_numpy(observation["account"]), outlook, day).numpy()

    def decide(self, positions: Tensor, account: Tensor, outlook: Outlook, day: int) -> Tensor:
        """Return the (n, 2) action for (n, 6) positions by stock, 0 where none is held, and a (3,) account."""
        account, positions = account.to(self.device)[None], positions.to(self.device)[None]
        is_held = positions[..., 0] > 0
        accounts = accounts_of(positions, account, outlook.opportunity[:, day], self.rules)
        expected = torch.where(is_held, -torch.inf, outlook.expected[:, day])
        orders = min(self.rules.max_new_positions_per_day, expected.shape[1])
        choice = decide(self.traders, self.cash_value, expected, accounts, torch.zeros_like(accounts.cash), orders)
        return choice.action(expected.shape[1])[0].cpu()

    def state_dict(self) -> dict[str, Any]:
        """Return all that it is, as nested dicts of tensors and JSON values."""
        return {
            "inputs": {name: torch.from_numpy(value) for name, value in _arrays(self.inputs).items()},
            "traders": dict(vars(self.traders)),
            "cash_value": {name: getattr(self.cash_value, name) for name in ("weights", "opportunity_knots")},
            "evidence": {
                name: torch.tensor(chance, dtype=torch.float64) for name, chance in vars(self.evidence).items()
            },
            "rules": asdict(self.rules),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device | str = "cpu") -> Self:
        """Restore what `state_dict` gave."""
        arrays = {name: value.cpu().numpy() for name, value in state["inputs"].items()}
        responses = Responses(**{f.name: arrays[f"responses.{f.name}"] for f in fields(Responses)})
        rules = from_dict(state["rules"], EnvironmentConfig)
        cash_value = CashValue.zero(rules, device).with_values(
            **{name: value.to(device) for name, value in state["cash_value"].items()}
        )
        traders = Traders(**{name: value.to(device) for name, value in state["traders"].items()})
        shapes = arrays["mean"].shape, arrays["std"].shape, traders.weights.shape
        if shapes != ((INPUTS - 1,), (INPUTS - 1,), (1, INPUTS)):
            raise ValueError(f"expected {INPUTS} inputs, got arrays of {shapes}")
        evidence = Evidence(**{name: float(chance) for name, chance in state["evidence"].items()})
        return cls(TradeInputs(arrays["mean"], arrays["std"], responses), traders, cash_value, rules, evidence)

    def save(self, path: Path | str) -> None:
        """Write it to one safetensors file."""
        state = self.state_dict()
        rules = json.dumps(state.pop("rules"))
        tensors = {f"{part}/{name}": value.contiguous() for part, held in state.items() for name, value in held.items()}
        save_file(tensors, path, metadata={"rules": rules})

    @classmethod
    def load(cls, path: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """Read an agent that `save` wrote.

        Raises:
            ConfigError: the file is missing or is not such an agent.
        """
        try:
            with safe_open(path, framework="pt") as file:
                state: dict[str, Any] = {"rules": json.loads(file.metadata()["rules"])}
            for name, value in load_file(path).items():
                part, key = name.split("/")
                state.setdefault(part, {})[key] = value
            return cls.from_state(state, device)
        except (OSError, SafetensorError, ConfigError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"expected an agent saved by DDPGAgent.save, got {path}: {' '.join(str(error).split())}"
            ) from error


def _arrays(inputs: TradeInputs) -> dict[str, NDArray[Any]]:
    """Return the arrays that inputs consist of, by name."""
    responses = {f"responses.{name}": value for name, value in vars(inputs.responses).items()}
    return {"mean": inputs.mean, "std": inputs.std, **responses}

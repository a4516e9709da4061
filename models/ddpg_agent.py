"""A single agent: it acts on the observations of an environment, learns, and can be saved and loaded."""

from __future__ import annotations

import copy
import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
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
from models.input_rows import InputRows
from models.inputs import INPUTS, Float32Array, TradeInputs
from models.networks import AdamW, Critic, Networks, Perceptrons
from models.replay_buffer import Batch
from models.responses import Responses
from models.round_robin import RoundRobinPolicy
from models.trader import Forecasts, PolicyNetworks, Traders, daily_orders, day_mean, relative_to_day
from utils.config.settings import from_dict
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.memory.living import counted

HISTORY = 1000
LOSSES = ("critic", "actor")
Learner = Callable[["DDPGAgent", Batch, int], Mapping[str, Tensor]]
"""Updates an agent by a batch, see `training.ddpg`; returns its losses."""
SIGNIFICANCE_LEVEL = 0.001
"""Forecasts with a p-value of at most this are significant."""


@dataclass(frozen=True)
class Evidence:
    """P-values of an agent's forecasts, out of fold on training days: that they have no skill.

    Adjusted (Bonferroni) for both tests and for all agents among which elites were selected.
    """

    selection: float
    """Of ranking the stocks of a day."""
    timing: float
    """Of forecasting the days' means."""

    @property
    def is_significant(self) -> bool:
        """Tell whether either is significant."""
        return self.smallest <= SIGNIFICANCE_LEVEL

    @property
    def smallest(self) -> float:
        """Return the smaller p-value."""
        return min(self.selection, self.timing)

    @property
    def p_value(self) -> str:
        """Return the smaller p-value as text."""
        return f"p < {SIGNIFICANCE_LEVEL:g}" if self.smallest < SIGNIFICANCE_LEVEL else f"p = {self.smallest:.3f}"

    @property
    def finding(self) -> str:
        """Return the finding as a sentence without a full stop."""
        return f"Training days show {'' if self.is_significant else 'no '}significant evidence ({self.p_value})"

    def __str__(self) -> str:
        return f"{self.p_value} on training days, significant below {SIGNIFICANCE_LEVEL:g}"


@dataclass(frozen=True)
class Committee:
    """How E agents forecast together: relative to the day's mean, by ridge regression and networks, averaged."""

    ridge: Tensor
    """(inputs,) weights of the ridge regressions, each times its weight in its agent's blend; their mean."""
    network: Tensor
    """(E,) weight of the network, percent of the initial capital per standard deviation."""
    target: Tensor
    """(E,) int64 index of the agent's sale target."""
    gate: Tensor
    """(E,) 1 where the actor's residual is kept, else 0."""

    @classmethod
    def of(
        cls, blend: Tensor, weights: Tensor, deviation: Tensor, target: Tensor, gate: Tensor, device: torch.device | str
    ) -> Self:
        """Make a committee of E agents.

        Args:
            blend: (E, 2) weights of ridge regression and network, see `training.forecasts.relative.Blend`.
            weights: (E, inputs) of the ridge regressions.
            deviation: (targets,) percent of the initial capital in a standard deviation.
            target: (E,) places of the sale targets.
        """
        ridge, network = blend.cpu().unbind(1)
        parts = (
            (ridge[:, None] * weights).mean(0),
            network.float() * deviation.cpu()[target],
            target,
            gate.float().cpu(),
        )
        return cls(*(part.to(device) for part in parts))


@counted("agents")
@dataclass(eq=False)
class DDPGAgent:
    """A deep deterministic policy gradient agent on a closed form, or a committee of such agents.

    Critic: Q(s, a) = sum of size times forecast + (value of cash + continuation)(account after the orders). Ridge
    regression and value of cash are closed forms; the networks' part is learned. Actor: the greedy rule on the closed
    form, plus a bounded residual. Target networks are played. Without networks it is the closed form alone.
    """

    inputs: TradeInputs
    traders: Traders
    """Of one agent; means over a committee."""
    cash_value: CashValue
    rules: EnvironmentConfig
    """Trading rules of its training."""
    evidence: Evidence
    """Of its forecasts, on training days out of fold."""
    networks: Networks | None = None
    """Of one agent, or of a committee."""
    committee: Committee | None = None
    """Weights of the networks, once they were blended."""
    noise_scale: float = 0.0
    """Standard deviation of its exploration noise, as a share of the largest order."""
    learner: Learner | None = None
    losses: dict[str, deque[float]] = field(default_factory=lambda: {n: deque(maxlen=HISTORY) for n in LOSSES})
    """Of its last updates."""

    @property
    def actor(self) -> Perceptrons:
        """Network of the residual on the greedy rule."""
        return self._learned.actor

    @property
    def actor_target(self) -> Perceptrons:
        """Target network of the actor, which is played."""
        return self._learned.actor_target

    @property
    def critic(self) -> Critic:
        """Networks of the learned part of Q."""
        return self._learned.critic

    @property
    def critic_target(self) -> Critic:
        """Target network of the critic, which is played."""
        return self._learned.critic_target

    @property
    def actor_optimizer(self) -> AdamW:
        """Optimiser of the actor."""
        return self._learned.actor_optimizer

    @property
    def critic_optimizer(self) -> AdamW:
        """Optimiser of the critic."""
        return self._learned.critic_optimizer

    @property
    def _learned(self) -> Networks:
        if self.networks is None:
            raise ConfigError("expected an agent with networks, got a closed form; see --learning.gradient-steps")
        return self.networks

    @property
    def holds_market(self) -> bool:
        """Tell whether it holds the market round robin, without forecasts."""
        return self.networks is None and not self.traders.weights.any()

    def holding_market(self) -> DDPGAgent:
        """Return an agent with its evidence that holds the market instead."""
        traders = Traders.of_market(self.rules, self.traders.weights.shape[1]).to(self.device)
        return replace(self, traders=traders, networks=None, committee=None)

    @property
    def policy(self) -> PolicyNetworks | RoundRobinPolicy | None:
        """Residual policy of its networks, or round robin if it holds the market; None for the closed form."""
        if self.holds_market:
            return RoundRobinPolicy.of(self.traders, self.rules)
        if self.networks is None or self.committee is None:
            return None
        return PolicyNetworks.of_committee(
            self.actor_target, self.critic_target, self._learned.calibration, self.committee.gate
        )

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        return self.cash_value.weights.device

    def update(self, batch: Batch, accumulate: int = 1) -> dict[str, float]:
        """Take one DDPG step on a batch, accumulating gradients over so many micro-batches; return the losses."""
        if self.learner is None:
            raise ConfigError("expected an agent of a trainer, got one without a learner; see training.ddpg.update")
        found = {name: float(loss.mean()) for name, loss in self.learner(self, batch, accumulate).items()}
        for name, loss in found.items():
            self.losses[name].append(loss)
        return found

    def clone(self) -> DDPGAgent:
        """Return a copy that shares no network."""
        rows = None if self.networks is None else torch.arange(len(self.networks.input_mask))
        networks = None if self.networks is None or rows is None else self.networks.rows(rows)
        return replace(self, networks=networks, losses=copy.deepcopy(self.losses))

    def get_stats(self) -> dict[str, float]:
        """Return the last losses, gradient norms, steps taken and skipped, and the noise scale."""
        found = {f"{name}_loss": losses[-1] if losses else math.nan for name, losses in self.losses.items()}
        if self.networks is not None:
            for name in LOSSES:
                optimizer: AdamW = getattr(self.networks, f"{name}_optimizer")
                for part in ("norm", "steps", "skipped"):
                    found[f"{name}_{part}"] = float(getattr(optimizer, part).mean())
        return {**found, "noise_scale": self.noise_scale}

    def forecasts(
        self, market: Market, x: InputRows | Float32Array | Tensor | None = None, days: slice = slice(None)
    ) -> Forecasts:
        """Return its forecasts for some days of a market, none for the others.

        Args:
            x: inputs of these days, (days, n, inputs); computed if not given. Rows bring their own days.
        """
        tradable = torch.from_numpy(np.isfinite(market.close)).to(self.device)
        if self.holds_market:
            return Forecasts.none(tradable)
        level, selection = torch.full((2, *tradable.shape), -torch.inf, device=self.device)
        if isinstance(x, InputRows):
            for some in x.blocks():
                for whole, part in zip((level, selection), self.expected(x.x(some)), strict=True):
                    whole[some] = x.spread(part, some, -torch.inf)
        else:
            blocks = self.inputs.blocks(market, days) if x is None else [(slice(None), x)]
            for stocks, block in blocks:
                own = self.expected(torch.as_tensor(block, device=self.device).flatten(0, 1))
                for whole, part in zip((level, selection), own, strict=True):
                    whole[days, stocks] = part.view(block.shape[:2])
        if self.committee is not None:
            level = day_mean(level, tradable) + relative_to_day(selection, tradable)
        return Forecasts.of(level[None], tradable)

    def expected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what orders earn by (rows, inputs): (rows,) levels, and forecasts that select among stocks."""
        level = x @ self.traders.weights[0].float()
        if self.committee is None:
            return level, level
        return level, x @ self.committee.ridge.float() + self.network_share(x)

    def network_share(self, x: Tensor) -> Tensor:
        """Return the networks' forecasts, (rows,) percent of the initial capital, from (rows, inputs).

        The mean over members and folds.
        """
        assert self.committee is not None
        seen = self.inputs.for_networks(x)
        total, folds = seen.new_zeros(len(seen)), self.critic_target.reward.flat.shape[1]
        weights, targets = self.committee.network.cpu().tolist(), self.committee.target.cpu().tolist()
        for member, (weight, target) in enumerate(zip(weights, targets, strict=True)):
            if weight > 0:
                for fold in range(folds):
                    share = weight / folds / len(weights)
                    total += share * self.critic_target.reward.output((member, fold), target, seen)
        return total

    def act(
        self, observation: Mapping[str, NDArray[np.float32]], forecasts: Forecasts, day: int
    ) -> NDArray[np.float32]:
        """Decide on an observation of `TradingEnvironment`.

        Args:
            forecasts: of the environment's market, by `forecasts`, once for all its days.
            day: index of the observed day (`info["day_index"]`).

        Returns:
            (investable, 2): coefficient in [0, 10], sale target in [10, 50] percent.
        """
        positions = np.concatenate((observation["portfolio"], observation["exits"]), axis=-1)
        return self.action(
            torch.from_numpy(positions), torch.from_numpy(observation["account"]), forecasts, day
        ).numpy()

    def action(self, positions: Tensor, account: Tensor, forecasts: Forecasts, day: int) -> Tensor:
        """Return the (n, 2) action for (n, 6) positions by stock, 0 where none is held, and a (3,) account."""
        account, positions = account.to(self.device)[None], positions.to(self.device)[None]
        is_held = positions[..., 0] > 0
        accounts = accounts_of(positions, account, forecasts.opportunity[:, day], self.rules)
        expected = torch.where(is_held, -torch.inf, forecasts.expected[:, day])
        orders = min(self.rules.max_new_positions_per_day, expected.shape[1])
        policy = self.policy
        if isinstance(policy, RoundRobinPolicy):
            turns = policy.turns(forecasts.expected[0].isfinite())[day, None]
            placed = policy.daily_orders(turns, expected.isfinite(), accounts.cash)
            return placed.action(expected.shape[1])[0].cpu()
        adjustment = None if policy is None else policy.adjusting(accounts, self.cash_value)
        none = torch.zeros_like(accounts.cash)
        choice = daily_orders(self.traders, self.cash_value, expected, accounts, none, orders, adjustment=adjustment)
        return choice.action(expected.shape[1])[0].cpu()

    def state_dict(self) -> dict[str, Any]:
        """Return its state as nested dicts of tensors and JSON values."""
        return {
            "inputs": {name: torch.from_numpy(value) for name, value in _arrays(self.inputs).items()},
            "traders": dict(vars(self.traders)),
            "cash_value": self.cash_value.state_dict(),
            "evidence": {
                name: torch.tensor(chance, dtype=torch.float64) for name, chance in vars(self.evidence).items()
            },
            "rules": asdict(self.rules),
            **({} if self.committee is None else {"committee": dict(vars(self.committee))}),
            **({} if self.networks is None else {"networks": self.networks.tensors()}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device | str = "cpu") -> Self:
        """Restore what `state_dict` gave."""
        arrays = {name: value.cpu().numpy() for name, value in state["inputs"].items()}
        responses = Responses(**{f.name: arrays[f"responses.{f.name}"] for f in fields(Responses)})
        rules = from_dict(state["rules"], EnvironmentConfig)
        cash_value = CashValue.from_state(state["cash_value"], rules, device)
        traders = Traders(**{name: value.to(device) for name, value in state["traders"].items()})
        shapes = arrays["mean"].shape, arrays["std"].shape, traders.weights.shape
        if shapes != ((INPUTS - 1,), (INPUTS - 1,), (1, INPUTS)):
            raise ValueError(f"expected {INPUTS} inputs, got arrays of {shapes}")
        evidence = Evidence(**{name: float(chance) for name, chance in state["evidence"].items()})
        agent = cls(TradeInputs(arrays["mean"], arrays["std"], responses), traders, cash_value, rules, evidence)
        if "networks" in state:
            agent.networks = Networks.of({name: value.to(device) for name, value in state["networks"].items()})
            agent.committee = Committee(**{name: value.to(device) for name, value in state["committee"].items()})
        return agent

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
    """Return the arrays of the inputs by name."""
    responses = {f"responses.{name}": value for name, value in vars(inputs.responses).items()}
    return {"mean": inputs.mean, "std": inputs.std, **responses}

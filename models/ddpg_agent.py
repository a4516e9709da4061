"""A single agent: it acts on the observations of an environment, learns, and can be saved and loaded."""

from __future__ import annotations

import copy
import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from data.market import Market
from models import risk
from models.cash_value import CashValue, accounts_of
from models.evidence import Evidence, Trust
from models.inputs import INPUTS, SHARED, Float32Array, InputRows, TradeInputs
from models.networks import Actor, AdamW, Critic, Networks
from models.replay_buffer import Batch
from models.responses import Responses
from models.round_robin import RoundRobinPolicy
from models.trader import AccountPolicy, DailyOrders, Forecasts, Traders, beyond_start, daily_orders, day_mean
from utils.config.settings import from_dict
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.memory.living import counted
from utils.spaces import MAX_TARGET_PERCENT, SESSIONS_HELD, SIZE

HISTORY = 1000
_PARTS = 6
"""Numbers that an agent with networks thinks of a stock, see `DDPGAgent.judge`."""
LOSSES = ("reward", "temporal", "actor")
Learner = Callable[[Batch, int], Mapping[str, Tensor]]
"""Updates an agent by a batch in this number of micro-batches; returns its losses, see `training.ddpg`."""


@dataclass(frozen=True)
class Members:
    """How E agents forecast together: their outputs are averaged."""

    weights: Tensor
    """(E, inputs) of the ridge regressions."""
    ridge: Tensor
    """(E,) weight of the ridge regression in what an agent expects, see `models.trader.Blend`."""
    network: Tensor
    """(E,) weight of the critic's reward."""
    start: Tensor
    """(E,) sale targets that they start from, in percent."""
    deviation: Tensor
    """(targets,) percent of the initial capital in a standard deviation of results."""
    typical: Tensor
    """(targets,) mean results of orders, percent of the initial capital."""

    def rows(self, rows: slice) -> Members:
        """Return some of the agents."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("weights", "ridge", "network", "start")})


@counted("agents")
@dataclass(eq=False)
class DDPGAgent:
    """A deep deterministic policy gradient agent on a closed form, or a committee of such agents.

    Critic: Q(s, a) = sum of size times reward(inputs, sale target) + (value of cash + continuation)(account after the
    orders). Actor: scores the stocks, shifts their sale targets and sizes the orders of the best; while last layers are
    zero, its orders are those of the greedy rule on the closed form. Target networks are played. Without networks it is
    the closed form alone.
    """

    inputs: TradeInputs
    traders: Traders
    """Of one agent; means over a committee."""
    cash_value: CashValue
    rules: EnvironmentConfig
    """Trading rules of its training."""
    evidence: Evidence
    """Of its forecasts, on training days out of fold."""
    trust: Trust
    networks: Networks | None = None
    """Of one agent, or of a committee."""
    members: Members | None = None
    """Where there are networks."""
    risk: Tensor | None = None
    """(numbers,) weights of what the risk of orders costs it, see `models.risk`; None: nothing."""
    noise_scale: float = 0.0
    """Standard deviation of its exploration noise, as a share of the largest order."""
    learner: Learner | None = None
    losses: dict[str, deque[float]] = field(default_factory=lambda: {n: deque(maxlen=HISTORY) for n in LOSSES})
    """Of its last updates."""

    @property
    def actor(self) -> Actor:
        """Networks of the policy."""
        return self._learned.actor

    @property
    def actor_target(self) -> Actor:
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
    def actor_loss_history(self) -> list[float]:
        """The actor's losses in the last updates."""
        return list(self.losses["actor"])

    @property
    def critic_loss_history(self) -> list[float]:
        """The critic's losses in the last updates, of rewards and of temporal differences together."""
        return [sum(both) for both in zip(self.losses["reward"], self.losses["temporal"], strict=True)]

    @property
    def _learned(self) -> Networks:
        if self.networks is None:
            raise ConfigError("expected an agent with networks, got a closed form; see --learning.gradient-steps")
        return self.networks

    @property
    def holds_market(self) -> bool:
        """Tell whether all of its orders hold the market round robin, without forecasts."""
        return self.trust.orders == 0

    def decides_on(self, day: int) -> bool:
        """Tell whether the orders of a day are its own."""
        policy = self.policy
        return not isinstance(policy, RoundRobinPolicy) or bool(policy.is_own(torch.tensor(day)))

    def betting(self, share: float) -> DDPGAgent:
        """Return the agent with its own orders for a share of the capital; the rest holds the market."""
        return replace(self, trust=replace(self.trust, orders=share))

    def closed_form(self) -> DDPGAgent:
        """Return the closed form on which its networks stand."""
        return replace(self, networks=None, members=None)

    @property
    def policy(self) -> AccountPolicy | RoundRobinPolicy | None:
        """Networks by which it sizes orders, if there are any; round robin where not all orders are its own."""
        networks = None if self.networks is None else AccountPolicy.of(self.networks.targets, is_committee=True)
        if self.trust.orders == 1:
            return networks
        typical = float(self.traders.weights[0, 0])  # inputs have mean 0 on training days
        return RoundRobinPolicy(self.trust.orders, self.rules, networks, typical)

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        return self.cash_value.weights.device

    def update(self, batch: Batch, accumulate: int = 1) -> dict[str, float]:
        """Take one DDPG step on a batch, accumulating gradients over `accumulate` micro-batches; return the losses."""
        if self.learner is None:
            raise ConfigError("expected an agent of a trainer, got one without a learner; see models.population")
        losses = {name: float(loss.mean()) for name, loss in self.learner(batch, accumulate).items()}
        for name, loss in losses.items():
            self.losses[name].append(loss)
        return losses

    def clone(self) -> DDPGAgent:
        """Return a copy that shares no network."""
        networks = None if self.networks is None else self.networks.map(torch.clone)
        return replace(self, networks=networks, learner=None, losses=copy.deepcopy(self.losses))

    def get_stats(self) -> dict[str, float]:
        """Return the last losses, gradient norms, steps taken and skipped, and the noise scale."""
        stats = {f"{name}_loss": losses[-1] if losses else math.nan for name, losses in self.losses.items()}
        if self.networks is not None:
            for name in ("actor", "critic"):
                optimizer: AdamW = getattr(self.networks, f"{name}_optimizer")
                for part in ("norm", "steps", "skipped"):
                    stats[f"{name}_{part}"] = float(getattr(optimizer, part).mean())
        return {**stats, "noise_scale": self.noise_scale}

    def forecasts(
        self, market: Market, x: InputRows | Float32Array | None = None, days: slice = slice(None)
    ) -> Forecasts:
        """Return its forecasts for some days of a market, none for the others.

        Args:
            x: inputs of these days, (days, n, inputs); computed if not given. Rows bring their own days.
        """
        # In the order of days: the last bits of sums depend on the layout.
        has_bar = np.ascontiguousarray(np.isfinite(market.close))
        tradable = torch.from_numpy(has_bar).to(self.device)
        if self.holds_market and self.risk is None:
            return Forecasts.none(tradable)
        if isinstance(x, InputRows):
            rows = x
        else:
            days = slice(*days.indices(len(has_bar))[:2])
            rows = InputRows(days, has_bar, INPUTS, SHARED)
            rows.fill(days, self.inputs.blocks(market, days) if x is None else iter([(slice(x.shape[1]), x)]))
            rows = rows.to(self.device)
        parts = 1 if self.members is None else _PARTS
        judgements = torch.full((parts, *tradable.shape), -torch.inf, device=self.device)
        shift = torch.zeros(len(tradable), 1, device=self.device)
        weights = None if self.risk is None else self.risk.float()
        penalty = None if weights is None else judgements.new_zeros(1, *tradable.shape)
        for some in rows.blocks():
            seen, shares = rows.x(some), torch.ones((), device=self.device)
            # Padded: the last bits of a product depend on its rows, whose number would tell of bars on later days.
            spare = 0 if rows is x else tradable[some].numel() - len(seen)
            if weights is not None and penalty is not None:
                costs = risk.penalties(risk.numbers_of_days(rows, some, self.inputs.volatility_scale), weights)
                penalty[0, some] = rows.spread(costs, some)
                shares = functional.pad(risk.shares(costs, weights), (0, spare), value=1.0)
            padded = functional.pad(seen, (0, 0, 0, spare))
            made = torch.cat(((shares * (padded @ self.trust.shift.float()))[None], self.judge(padded, shares)))
            shift[some, 0] = rows.mean(made[:1, : len(seen)], some)[0]
            judgements[:, some] = rows.spread(made[1:, : len(seen)], some, -torch.inf)
        if self.members is None:
            return Forecasts.of(judgements + shift, tradable, self.traders.target_percent, judgements, None, penalty)
        level, ridge, reward, at_start, score, target = judgements
        relative, added = (part - day_mean(part, tradable) for part in (ridge, score))
        expected = day_mean(level, tradable) + shift + relative + (reward - day_mean(at_start, tradable))
        score, target = level + added, torch.where(tradable, target, MAX_TARGET_PERCENT)
        return Forecasts.of(expected[None], tradable, target[None], score[None], penalty=penalty)

    def judge(self, x: Tensor, shares: Tensor) -> Tensor:
        """Return what it makes of stocks by (rows, inputs); results of largest orders, percent of the initial capital.

        Args:
            shares: (rows,) of the ridge forecasts that come true, see `models.risk`; or one number.

        Returns:
            (6, rows), or without networks (1, rows): the ridge forecast, whose mean over a day's stocks is the day's
            level; what the ridge regression adds relative to the day; what the critic adds, at the agent's own sale
            target and at the one that it starts from, whose mean is taken off; what the actor adds to the score
            relative to the day; the sale target in percent.
        """
        level = shares * (x @ self.traders.weights[0].float())
        if self.members is None:
            return level[None]
        members, networks, seen = self.members, self._learned.targets, self.inputs.for_networks(x)
        total, folds = torch.zeros(4, len(x), device=x.device), networks.actor.choice.shape[1]
        for member, (network, start) in enumerate(zip(members.network.float(), members.start.float(), strict=True)):
            for fold in range(folds):
                judged = networks.judge(member, fold, seen, start, members.deviation)
                judged[2:] *= network
                judged[3] += beyond_start(members.typical, judged[1:2], members.start[member : member + 1])[0]
                total += judged / (folds * len(members.start))
        score, target, at_start, reward = total
        factors = members.ridge, networks.weights[..., 0].mean(1).double() - 1.0
        ridge, more = (shares * (x @ (factor[:, None] * members.weights).mean(0).float()) for factor in factors)
        return torch.stack((level, ridge, reward, at_start, score + more, target))

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
        held = np.concatenate((observation["portfolio"], observation["exits"]), axis=-1)
        placed = self.place(torch.from_numpy(held), torch.from_numpy(observation["account"]), forecasts, day)
        # An order of the market's has a sale target of its own.
        target = forecasts.target[:, day].scatter(1, placed.stock, placed.target_percent)
        return placed.action(target)[0].cpu().numpy()

    def place(self, positions: Tensor, account: Tensor, forecasts: Forecasts, day: int) -> DailyOrders:
        """Return the orders of one account by (n, 6) positions by stock, 0 where none is held, and a (3,) account; the
        best first, as in rollouts."""
        account, positions = account.to(self.device)[None], positions.to(self.device)[None]
        score = torch.where(positions[..., 0] > 0, -torch.inf, forecasts.score[:, day])
        orders = min(self.rules.max_new_positions_per_day, score.shape[1])
        policy, mixed = self.policy, None
        if isinstance(policy, RoundRobinPolicy):
            today, turns = torch.tensor([day]).to(self.device), policy.turns(forecasts.expected[0].isfinite())
            sizes = policy.sizes(forecasts)[today]
            market = policy.daily_orders(turns[today], score.isfinite(), account[:, 0], sizes)
            if self.holds_market:
                return market
            held = (positions[..., SESSIONS_HELD] * self.rules.max_holding_days).round()
            cash, size = policy.own_account(account[:, 0], positions[..., SIZE], held, today)
            account, positions = account.clone(), positions.clone()
            account[:, 0], positions[..., SIZE] = cash, size
            mixed = partial(policy.mixed, market=market, cash=cash, day=today)
            policy = policy.own
        accounts = accounts_of(positions, account, forecasts.opportunity[:, day], self.rules)
        candidates = replace(forecasts.at(slice(None), day), score=score)
        none = torch.zeros_like(accounts.cash)
        # Without noise as with it in float64: the same sizes as in rollouts, to the last bit.
        adjustment = None if policy is None else policy.adjusting(accounts, self.cash_value, none)
        parts = self.traders, self.cash_value, candidates, accounts, none, orders
        choice, decision = daily_orders(*parts, adjustment=adjustment)
        return choice if mixed is None else mixed(choice, decision.size)

    def state_dict(self) -> dict[str, Any]:
        """Return its state as nested dicts of tensors and JSON values."""
        arrays = {f"responses.{name}": value for name, value in vars(self.inputs.responses).items()}
        arrays = {"mean": self.inputs.mean, "std": self.inputs.std, **arrays}
        return {
            "inputs": {name: torch.from_numpy(value) for name, value in arrays.items()},
            "traders": dict(vars(self.traders)),
            "cash_value": self.cash_value.state_dict(),
            "evidence": {
                name: torch.tensor(chance, dtype=torch.float64) for name, chance in vars(self.evidence).items()
            },
            "trust": {name: torch.as_tensor(value, dtype=torch.float64) for name, value in vars(self.trust).items()},
            "rules": asdict(self.rules),
            **({} if self.risk is None else {"risk": {"weights": self.risk}}),
            **({} if self.members is None else {"members": dict(vars(self.members))}),
            **({} if self.networks is None else {"networks": self.networks.tensors}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device | str = "cpu") -> Self:
        """Restore what `state_dict` gave."""

        def held(part: str) -> dict[str, Tensor]:
            return {name: value.to(device) for name, value in state[part].items()}

        arrays = {name: value.cpu().numpy() for name, value in state["inputs"].items()}
        responses = Responses(**{f.name: arrays[f"responses.{f.name}"] for f in fields(Responses)})
        rules, traders = from_dict(state["rules"], EnvironmentConfig), Traders(**held("traders"))
        shapes = arrays["mean"].shape, arrays["std"].shape, traders.weights.shape
        if shapes != ((INPUTS - 1,), (INPUTS - 1,), (1, INPUTS)):
            raise ValueError(f"expected {INPUTS} inputs, got arrays of {shapes}")
        trust = state["trust"]
        return cls(
            TradeInputs(arrays["mean"], arrays["std"], responses),
            traders,
            CashValue.from_state(state["cash_value"], rules, device),
            rules,
            Evidence(**{name: float(chance) for name, chance in state["evidence"].items()}),
            Trust(float(trust["orders"]), float(trust["timing"]), trust["shift"].to(device)),
            networks=Networks(held("networks")) if "networks" in state else None,
            members=Members(**held("members")) if "networks" in state else None,
            risk=held("risk")["weights"] if "risk" in state else None,
        )

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

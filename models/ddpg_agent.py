"""A single agent: it acts on the observations of an environment, learns, and can be saved and loaded."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from data.features.bank import relative_risk
from data.features.forms import FeatureInputs
from data.features.formulas import Formulas
from data.features.inputs import INPUTS, TradeInputs
from data.features.responses import Responses
from data.features.rows import InputRows
from data.market import Market
from models import ddpg
from models.ddpg import LOSSES, Batch, Losses
from models.evidence import Evidence
from models.evolution import HORIZON, believed_genes
from models.networks import AdamW, Networks
from models.policy import Forecasts, decide
from utils.arrays import Float32Array
from utils.config.settings import from_dict
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.memory_census import counted

HISTORY = 1000
"""Losses of an agent, and generations of a run, that are kept."""
_ARRAYS, _WORDS, _NUMBERS = (
    ("mean", "std", "deviations"),
    ("rules", "features", "formulas"),
    ("shrink", "timing", "usual"),
)
"""Of the saved state: arrays of the inputs, parts that are JSON, and numbers beside the evidence."""


def _module(numbers: Tensor) -> nn.ParameterDict:
    return nn.ParameterDict({"flat": numbers.detach()})


@counted("agents")
@dataclass(eq=False)
class DDPGAgent:
    """A deep deterministic policy gradient agent, or a committee of such agents, whose scores are averaged.

    Actor: scores every stock, held or not; its outputs depend on the day alone, and the account enters by the price of
    capital, see `models.policy`. Target networks are played.
    Critic: what a position in a stock gains until it is sold. See `models.ddpg`.
    """

    inputs: TradeInputs
    networks: Networks
    """Of its E members, one by default."""
    genes: Tensor
    """(E, genes) float64, see `models.evolution.GENES`; a committee acts by their geometric means."""
    rules: EnvironmentConfig
    """Trading rules of its training."""
    evidence: Evidence
    """Of its forecasts, on training days out of fold."""
    shrink: float = 1.0
    """Share of the differences between its scores that is believed."""
    timing: float = 0.0
    """Share of the levels of its scores that is believed; with both 0 it holds the benchmark."""
    usual: float = 0.0
    """Mean of its scores on days that it learned from, percent: their usual level."""
    own_genes: Tensor | None = None
    """(E, genes) before evidence pulled them, see `believed`; None: `genes`."""
    noise_scale: float = 0.0
    """Standard deviation of its exploration noise, in deviations of a session's results."""
    losses: dict[str, deque[float]] = field(default_factory=lambda: {name: deque(maxlen=HISTORY) for name in LOSSES})
    """Of its last updates, by name."""
    waiting: int = 0
    """Batches whose gradients wait for a step."""

    @property
    def actor(self) -> nn.ParameterDict:
        """Parameters of the actor, one of (E, folds, numbers) in the memory of the networks."""
        return _module(self.networks.online.actor)

    @property
    def actor_target(self) -> nn.ParameterDict:
        """Those of its target network, which is played."""
        return _module(self.networks.target.actor)

    @property
    def critic(self) -> nn.ParameterDict:
        """Parameters of the critic, as the actor's."""
        return _module(self.networks.online.critic.flat)

    @property
    def critic_target(self) -> nn.ParameterDict:
        """Those of the critic's target network."""
        return _module(self.networks.target.critic.flat)

    @property
    def actor_optimizer(self) -> AdamW:
        """Optimiser of the actor."""
        return self.networks.optimizers["actor"]

    @property
    def critic_optimizer(self) -> AdamW:
        """Optimiser of the critic."""
        return self.networks.optimizers["critic"]

    @property
    def actor_loss_history(self) -> list[float]:
        """The actor's losses in the last updates."""
        return list(self.losses["actor"])

    @property
    def critic_loss_history(self) -> list[float]:
        """The critic's losses in the last updates."""
        return list(self.losses["critic"])

    @property
    def digest(self) -> str:
        """Hash of what it decides by: fitted inputs, target networks, genes and shrink."""
        target, inputs = self.networks.target, self.state_dict()["inputs"].values()
        tensors = (*inputs, target.critic.flat, target.actor, self.genes)
        contents = [one.detach().cpu().numpy().tobytes() for one in tensors]
        believed = repr((self.shrink, self.timing, self.usual)).encode()
        return hashlib.sha256(b"".join([*contents, believed])).hexdigest()[:16]

    def believed(self, shrink: float, timing: float) -> DDPGAgent:
        """Return the agent whose scores, their levels, and genes are believed as far; see `believed_genes`."""
        own = self.genes if self.own_genes is None else self.own_genes
        return replace(self, genes=believed_genes(own, shrink, timing), own_genes=own, shrink=shrink, timing=timing)

    def shrunk(self, shrink: float) -> DDPGAgent:
        """Return the agent of whose differences between scores a share is believed; 1: followed in full."""
        return self.believed(shrink, self.timing)

    @property
    def acting_genes(self) -> Tensor:
        """(1, genes) float64 by which it acts."""
        return self.genes.log2().mean(0, keepdim=True).exp2()

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        return self.genes.device

    def update(self, batch: Batch, accumulate: bool = False, *, tau: float = 0.05) -> Losses:
        """Return the losses of a batch, whose gradients wait if they `accumulate`, else step along their mean."""
        gamma = (1.0 - 1.0 / self.genes[:, HORIZON]).float()
        total, taken = ddpg.losses_of(self.networks, gamma, batch, cost=100 * self.rules.cost_rate)
        total.backward()
        self.waiting += 1
        if not accumulate:
            ddpg.step(self.networks, tau, 1.0 / self.waiting)
            self.waiting = 0
        losses = Losses(*(float(loss.mean()) for loss in taken))
        for name, loss in zip(LOSSES, losses, strict=True):
            self.losses[name].append(loss)
        return losses

    def clone(self) -> DDPGAgent:
        """Return a copy that shares no network."""
        return replace(self, networks=self.networks.map(torch.clone), losses=copy.deepcopy(self.losses), waiting=0)

    def get_stats(self) -> dict[str, float]:
        """Return the last losses, gradient norms, steps taken and skipped, and the noise scale."""
        stats = {f"{name}_loss": losses[-1] if losses else math.nan for name, losses in self.losses.items()}
        for name, optimizer in self.networks.optimizers.items():
            for part in ("norm", "steps", "skipped"):
                stats[f"{name}_{part}"] = float(getattr(optimizer, part).mean())
        return {**stats, "noise_scale": self.noise_scale}

    def forecasts(self, market: Market, days: slice = slice(None), *, by_day: bool = False) -> Forecasts:
        """Return its forecasts for some days of a market, none for the others.

        Args:
            by_day: each day by itself, as for the orders of a session, and so equal to these to the bit.
        """
        days = market.bounded(days)
        rows = self.inputs.rows_of(market, days).to(self.device)
        blocks = [slice(day, day + 1) for day in range(days.start, days.stop)] if by_day else rows.blocks()
        found = self.forecasts_of_rows(rows, torch.from_numpy(relative_risk(market.close)), blocks, is_padded=True)
        member = None if market.members is None else market.members[:, market.investable_columns]
        return found if member is None else replace(found, member=torch.from_numpy(member).to(self.device))

    def forecasts_of_rows(
        self, rows: InputRows, risk: Tensor, blocks: Sequence[slice], *, is_padded: bool = False
    ) -> Forecasts:
        """Return its forecasts on the days of `rows`, in arrays of all days of the market, as its (days, n) risk has;
        other days have none.

        Args:
            blocks: of days, at a time.
            is_padded: to a row for each stock, with a bar or not: the last bits of a product depend on the number of
                rows.
        """
        score = torch.full((1, *risk.shape), -torch.inf, device=self.device)
        for some in blocks:
            x = rows.x(some)
            spare = (some.stop - some.start) * risk.shape[1] - len(x) if is_padded else 0
            seen = self.inputs.for_networks(functional.pad(x, (0, 0, 0, spare)))
            score[:, some] = rows.spread(self.mean_scores(seen)[None, : len(x)], some)
        return Forecasts.of(score, torch.full((1, 1), self.usual, device=self.device), risk.to(self.device))

    def mean_scores(self, seen: Tensor) -> Tensor:
        """Return the (rows,) scores of the played actors of all members and folds in the mean, by what networks see,
        (rows, inputs)."""
        members, folds = len(self.genes), self.networks.folds
        total = torch.zeros(len(seen), device=seen.device)
        for member in range(members):
            for fold in range(folds):
                total += self.networks.target.played_scores(member, fold, seen) / (members * folds)
        return total

    def contributions(self, market: Market, asked: Sequence[tuple[int, int]]) -> list[dict[str, float]]:
        """Return for days and columns of the market what moves the score, percent, the largest first: the score less
        that with an input's values at their means of the training days, by names of inputs."""
        reasons = list[dict[str, float]]()
        if not asked:
            return reasons
        named, days = self.inputs.named_places(), [day for day, _ in asked]
        rows = self.inputs.rows_of(market, slice(min(days), max(days) + 1)).to(self.device)
        stock_of = {column: stock for stock, column in enumerate(market.investable_columns.tolist())}
        for day, column in asked:
            today = slice(day, day + 1)
            row = rows.stock[rows.rows(today)].tolist().index(stock_of[column])
            without = self.inputs.for_networks(rows.x(today)[[row]]).repeat(1 + len(named), 1)
            for left_out, places in enumerate(named.values(), start=1):
                without[left_out, places] = 0.0
            score = self.mean_scores(without)
            moved = dict(zip(named, (score[0] - score[1:]).tolist(), strict=True))
            reasons.append(dict(sorted(moved.items(), key=lambda one: -abs(one[1]))))
        return reasons

    def act(self, observation: Mapping[str, Float32Array], forecasts: Forecasts, day: int) -> Float32Array:
        """Decide on an observation of `TradingEnvironment`: (investable,) target weights.

        Of a benchmark that holds other stocks an observation shows nothing; `ERLTrainer.run_episode` sees all.

        Args:
            forecasts: of the environment's market, by `forecasts`, once for all its days.
            day: index of the observed day (`info["day_index"]`).
        """
        stocks = torch.from_numpy(observation["portfolio"]).double().to(self.device)[None]
        accounts = stocks[..., 0], stocks[..., 1], stocks[..., 2], stocks[..., -1] == 0
        today, cost = forecasts.at(0, torch.tensor([day])), self.rules.cost_rate
        may_buy = None if forecasts.member is None else forecasts.member[[day]]
        believed: dict[str, Any] = {"shrink": self.shrink, "timing": self.timing}
        decision = decide(*today, self.acting_genes, *accounts, cost, may_buy=may_buy, **believed)
        return decision.target[0].float().cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return its state as nested dicts of tensors and JSON values."""
        arrays = {f"responses.{name}": value for name, value in vars(self.inputs.responses).items()}
        fitted = {name: getattr(self.inputs, name) for name in _ARRAYS}
        numbers = {f"evidence_{name}": value for name, value in vars(self.evidence).items()}
        numbers |= {name: getattr(self, name) for name in _NUMBERS} | {"learning_rate": self.networks.learning_rate}
        return {
            "inputs": {name: torch.from_numpy(value) for name, value in {**fitted, **arrays}.items()},
            "members": {"genes": self.genes} | ({} if self.own_genes is None else {"own_genes": self.own_genes}),
            "numbers": {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
            "rules": asdict(self.rules),
            "features": self.inputs.features.state(),
            "formulas": self.inputs.formulas.state(),
            "networks": self.networks.tensors,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device | str = "cpu") -> Self:
        """Restore what `state_dict` gave."""

        def tensors(part: str) -> dict[str, Tensor]:
            return {name: value.to(device) for name, value in state[part].items()}

        arrays = {name: value.cpu().numpy() for name, value in state["inputs"].items()}
        responses = Responses(**{f.name: arrays[f"responses.{f.name}"] for f in fields(Responses)})
        fitted = {name: arrays[name] for name in _ARRAYS}
        shapes = fitted["mean"].shape, fitted["std"].shape
        if shapes != ((INPUTS - 1,), (INPUTS - 1,)):
            raise ValueError(f"expected {INPUTS} inputs, got arrays of {shapes}")
        numbers = {name: float(value) for name, value in state["numbers"].items()}
        believed: dict[str, Any] = {name: numbers.pop(name) for name in _NUMBERS}
        learning_rate, members = numbers.pop("learning_rate"), tensors("members")
        evidence = {name.removeprefix("evidence_"): value for name, value in numbers.items()}
        return cls(
            TradeInputs(
                **fitted,
                responses=responses,
                features=FeatureInputs.from_state(state["features"]),
                formulas=Formulas.from_state(state["formulas"]),
            ),
            Networks(tensors("networks"), learning_rate),
            members["genes"],
            rules=from_dict(state["rules"], EnvironmentConfig),
            evidence=Evidence(**evidence),
            own_genes=members.get("own_genes"),
            **believed,
        )

    def save(self, path: Path | str) -> None:
        """Write it to one safetensors file."""
        state = self.state_dict()
        words = {name: json.dumps(state.pop(name)) for name in _WORDS}
        tensors = {f"{part}/{name}": value.contiguous() for part, one in state.items() for name, value in one.items()}
        save_file(tensors, path, metadata=words)

    @classmethod
    def load(cls, path: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """Read an agent that `save` wrote.

        Raises:
            ConfigError: the file is missing or is not such an agent.
        """
        try:
            with safe_open(path, framework="pt") as file:
                state: dict[str, Any] = {name: json.loads(file.metadata()[name]) for name in _WORDS}
            for name, value in load_file(path).items():
                part, key = name.split("/")
                state.setdefault(part, {})[key] = value
            return cls.from_state(state, device)
        except (OSError, SafetensorError, ConfigError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"expected an agent saved by DDPGAgent.save, got {path}: {' '.join(str(error).split())}"
            ) from error

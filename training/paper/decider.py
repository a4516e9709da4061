"""Who decides in a paper account: a run's champion, or a policy of the user's own."""

import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from data.features.own import OwnFeature, public_names, require_alone
from data.market import Market
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from training.evaluation.baselines import RULE_NUMBERS, ScoreRule, score_policy
from training.evaluation.play import EvaluationSetup, OwnAccount, account_by, account_of_agent
from training.policies.read import read_policy
from training.policies.score_rule import limit_warning, require_wanted, rule_of, rule_of_function, rule_text
from training.rollout import step_by
from training.signals.holdings import Holding
from training.signals.signals import Order, account_at, decide, sized_orders
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError, DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Champion:
    """The champion of a run."""

    agent: DDPGAgent
    run: str = ""
    generation: int = 0
    file: ClassVar[str] = "champion.safetensors"
    """Name of the file in the account's folder that it is read from."""

    @property
    def share(self) -> float:
        """Share of the capital that follows it; the rest holds the basket."""
        return self.agent.share

    def save(self, folder: Path) -> dict[str, Any]:
        """Write its file into a folder; return what the journal's first row says of it."""
        self.agent.save(folder / self.file)
        digest = _digest((folder / self.file).read_bytes())
        return {"run": self.run, "generation": self.generation, "champion": digest}

    def decide(
        self, market: Market, day: int, rules: EnvironmentConfig, cash: float, holdings: Sequence[Holding]
    ) -> tuple[list[Order], list[str]]:
        """Return purchases and the tickers that are sold, by forecasts of the day, see `signals.decide`."""
        return decide(self.agent, market, day, rules, cash, holdings)

    def play(self, setup: EvaluationSetup, market: Market) -> OwnAccount:
        """Return its account on the one window of a setup, as it is evaluated.

        Args:
            market: without the days that a setup may have beyond those of the account.
        """
        forecasts = self.agent.forecasts(market, slice(setup.judged.start, None), by_day=True)
        return account_of_agent(setup, self.agent, forecasts)


@dataclass(frozen=True)
class OwnPolicy:
    """A function of wide bars, and the numbers by which its scores or target weights become orders."""

    name: str
    function: OwnFeature
    numbers: Mapping[str, float]
    """By `RULE_NUMBERS`."""
    source: bytes
    """Of its file."""
    share: float = 1.0
    file: ClassVar[str] = "policy.py"

    @classmethod
    def of_file(cls, place: str, market: Market, rules: EnvironmentConfig, tuning: torch.Tensor) -> "OwnPolicy":
        """Read a policy as `evaluate --policy` does: audited, and tuned on training days.

        Args:
            place: FILE.py or FILE.py:NAME.
            tuning: (W,) first days of the training windows.

        Raises:
            ConfigError, DataError: it is no such function, fails, looks ahead, or never asks for a stock.
        """
        name, function = read_policy(place)
        if isinstance(function, type) or hasattr(function, "act") or hasattr(function, "predict"):
            raise ConfigError(
                f"expected a function of bars as --policy of a paper account, got {place}, which acts on observations: "
                "what it remembers would be lost from session to session; write it as a function"
            )
        path = Path(place.partition(":")[0])
        require_alone(path, "policies")
        rule = rule_of(name, function, market, Portfolio.on(market, rules), tuning)
        require_wanted(name, rule.scores, market.dates)
        logger.info("%s", rule_text(name, rule, market))
        return cls(name, function, {number: getattr(rule, number) for number in RULE_NUMBERS}, path.read_bytes())

    @classmethod
    def load(cls, path: Path, said: Mapping[str, Any]) -> "OwnPolicy":
        """Read the copy of an account, by what its journal's first row says of it."""
        function = public_names(path, "policies")[said["name"]]
        return cls(said["name"], function, {k: float(v) for k, v in said["rule"].items()}, path.read_bytes())

    def save(self, folder: Path) -> dict[str, Any]:
        """As `Champion.save`."""
        (folder / self.file).write_bytes(self.source)
        rule = {number: repr(value) for number, value in self.numbers.items()}  # JSON has no infinite ones
        policy = {"name": self.name, "sha256": (digest := _digest(self.source)), "rule": rule}
        return {"run": f"{self.name}-{digest[:8]}", "generation": None, "policy": policy}

    def decide(
        self, market: Market, day: int, rules: EnvironmentConfig, cash: float, holdings: Sequence[Holding]
    ) -> tuple[list[Order], list[str]]:
        """As `Champion.decide`, by the values of the day, of bars up to it."""
        rule, portfolio = self._rule(market, rules, stop=day + 1), account_at(market, day, rules, cash, holdings)
        place = {column: stock for stock, column in enumerate(market.investable_columns.tolist())}
        stocks = [place[holding.column] for holding in holdings]
        today = rule.scores[day : day + 1].copy()
        scores = np.nan_to_num(today[0, stocks].astype(np.float64), nan=-np.inf)
        today[0, stocks] = np.nan  # what is held is not bought again
        sizes = None if rule.sizes is None else rule.sizes[day : day + 1]
        rule = dataclasses.replace(rule, scores=today, sizes=sizes)
        orders = score_policy(portfolio, rule, slice(0, 1))(portfolio, 0)
        leaves = portfolio.bars.tradable[0].numpy()[stocks] & (scores < rule.keep_above) & (rules.exits == "daily")
        sales = [holding.ticker for holding, is_sold in zip(holdings, leaves, strict=True) if is_sold]
        return sized_orders(portfolio, orders, torch.full_like(orders.coefficient, torch.nan), market, day), sales

    def warn_of_limit(self, market: Market, rules: EnvironmentConfig) -> None:
        """Say where an account cannot follow its weights, see `limit_warning`."""
        if said := limit_warning(self.name, self._rule(market, rules), rules.max_new_positions_per_day):
            logger.warning("%s", said)

    def play(self, setup: EvaluationSetup, market: Market) -> OwnAccount:
        """As `Champion.play`, by its values of all days at once, which must be those of each day by itself."""
        act = score_policy(setup.env, self._rule(market, setup.env.rules), setup.judged)
        return account_by(setup, lambda step: step_by(setup.env, act, step))

    def _rule(self, market: Market, rules: EnvironmentConfig, stop: int | None = None) -> ScoreRule:
        return rule_of_function(self.name, self.function, market, rules, self.numbers, stop)


Decider = Champion | OwnPolicy


def load_decider(folder: Path, opening: Mapping[str, Any]) -> Decider:
    """Read who decides in an account from its folder.

    Raises:
        DataError: the file is missing, or another one than at the opening.
    """
    policy = opening.get("policy")
    path = folder / (Champion.file if policy is None else OwnPolicy.file)
    try:
        digest = _digest(path.read_bytes())
    except OSError as error:
        got = f"got: {error.strerror}"
    else:
        got = "" if digest == (opening["champion"] if policy is None else policy["sha256"]) else "got another file"
    if got:
        raise DataError(
            f"expected the {word_of(opening)} that the account began with in {path}, {got}; restore it from a copy"
        )
    return Champion(DDPGAgent.load(path)) if policy is None else OwnPolicy.load(path, policy)


def word_of(opening: Mapping[str, Any]) -> str:
    """Return what decides in an account, by its journal's first row: `champion` or `policy`."""
    return "policy" if "policy" in opening else "champion"


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()

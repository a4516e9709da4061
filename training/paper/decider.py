"""Who decides in a paper account: a run's champion, or a policy of the user's own."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from data.features.bank import relative_risk
from data.features.own import OwnFeature, public_names, require_alone
from data.market import Market
from environment.benchmark import Benchmark
from environment.portfolio import Policy, Portfolio
from models.ddpg_agent import DDPGAgent
from training.evaluation.baselines import NUMBERS, BandRule, Tuning
from training.evaluation.play import GivenWeights
from training.policies.accounts import (
    is_weights,
    require_weights,
    rule_of,
    standing,
    table_of,
    values_of_function,
)
from training.policies.read import read_policy
from training.rollout import follow
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

    def save(self, folder: Path) -> dict[str, Any]:
        """Write its file into a folder; return what the journal's first row says of it."""
        self.agent.save(folder / self.file)
        digest = _digest((folder / self.file).read_bytes())
        return {"run": self.run, "generation": self.generation, "champion": digest}

    def policy(self, market: Market, days: slice) -> Policy:
        """Return its policy on some days of a market, by forecasts of each day by itself."""
        return follow(self.agent, self.agent.forecasts(market, days, by_day=True))


@dataclass(frozen=True)
class OwnPolicy:
    """A function of wide bars, and the numbers by which its scores become target weights."""

    name: str
    function: OwnFeature
    numbers: Mapping[str, float]
    """By `NUMBERS`; none of a function of weights."""
    source: bytes
    """Of its file."""
    file: ClassVar[str] = "policy.py"

    @classmethod
    def of_file(cls, place: str, market: Market, rules: EnvironmentConfig, benchmark: Benchmark) -> "OwnPolicy":
        """Read a policy as `evaluate --policy` does: audited, and tuned on training days.

        Args:
            place: FILE.py or FILE.py:NAME.

        Raises:
            ConfigError, DataError: it is no such function, fails, looks ahead, or tells no two stocks apart.
        """
        name, function = read_policy(place)
        if isinstance(function, type) or hasattr(function, "act") or hasattr(function, "predict"):
            raise ConfigError(
                f"expected a function of bars as --policy of a paper account, got {place}, which acts on observations: "
                "what it remembers would be lost from session to session; write it as a function"
            )
        path = Path(place.partition(":")[0])
        require_alone(path, "policies")
        source, values = path.read_bytes(), table_of(name, function, market)
        if is_weights(function):
            require_weights(name, values)
            return cls(name, function, {}, source)
        tuning = Tuning.of(market, Portfolio.on(market, rules, benchmark=benchmark))
        rule, how = rule_of(name, values, tuning, market.dates, slice(None))
        logger.info("%s", how)
        return cls(name, function, {number: float(getattr(rule, number)) for number in NUMBERS}, source)

    @classmethod
    def load(cls, path: Path, said: Mapping[str, Any]) -> "OwnPolicy":
        """Read the copy of an account, by what its journal's first row says of it."""
        function = public_names(path, "policies")[said["name"]]
        numbers = {name: float(said["rule"][name]) for name in NUMBERS if name in said["rule"]}
        return cls(said["name"], function, numbers, path.read_bytes())

    def save(self, folder: Path) -> dict[str, Any]:
        """As `Champion.save`."""
        (folder / self.file).write_bytes(self.source)
        return {"run": f"{self.name}-{_digest(self.source)[:8]}", "generation": None, "policy": self.said}

    @property
    def said(self) -> dict[str, Any]:
        """What the journal says of it."""
        rule = {name: repr(value) for name, value in self.numbers.items()}
        return {"name": self.name, "sha256": _digest(self.source), "rule": rule}

    def policy(self, market: Market, days: slice) -> Policy:
        """As `Champion.policy`, by its values of all days at once, which must be those of each day by itself."""
        values = values_of_function(self.name, self.function, market)
        if is_weights(self.function):
            require_weights(self.name, values)
            return GivenWeights(values)
        return BandRule(standing(values), **self.numbers).policy(torch.from_numpy(relative_risk(market.close)))


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

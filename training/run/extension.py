"""A run that extends another one: it starts from that run's agents, on data with days added since."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.torch
import torch

from data.market import Market
from data.record import is_recorded_market
from models.population import NETWORK_STATE
from training.erl_trainer import ERLTrainer
from training.run.market import read_market_record
from utils.config.settings import LATEST, flatten, settings_hash, to_dict, with_settings
from utils.config.trader import Config
from utils.errors import ConfigError, DataError
from utils.runs import state_tree
from utils.runs.run_log import RunLog, latest_run, write_atomically, write_json

INHERITED = "inherited.json"
"""File of a run that extends another one."""
INHERITED_NETWORKS = "inherited.safetensors"
"""The parent's networks, if it had any; the other file holds their sha256."""


@dataclass(frozen=True)
class Inheritance:
    """State that a run inherits from another one; its ridge regressions are fitted to its own days.

    The networks that read the account are inherited. Those that read stocks are not: folds are fifths of the training
    days, which have grown, so that a network would have seen days that are now out of its fold.
    """

    run: str
    generation: int
    genes: list[list[float]]
    elites: list[int]
    cash_value: list[float]
    """Weights of the value of cash."""
    opportunity_knots: list[float]
    updates: int = 0
    """Gradient steps of the networks so far."""
    examined: int = 0
    """Agents that were evaluated, for which p-values are adjusted."""
    networks: str = ""
    """The sha256 of their file; empty for agents without networks."""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Read the inheritance of the run in `path`; None for random initialisation. ConfigError for a damaged file."""
        try:
            return cls(**json.loads((path / INHERITED).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"expected what a run inherited in {path / INHERITED}, got: {error}") from None

    def give(self, trainer: ERLTrainer, path: Path) -> None:
        """Initialise the trainer of the run in `path` with it.

        Raises ConfigError where population or networks have another size, or the file of the networks has changed.
        """
        population = trainer.population
        if len(self.genes) != len(population):
            raise ConfigError(
                f"expected a population of {len(self.genes)}, as that of {self.run}, got {len(population)}; leave "
                "--population-size out"
            )
        if self.networks and population.networks is not None:
            state = read_networks(path, self.networks)
            try:
                population.load_networks(state)
            except (KeyError, ValueError) as error:
                raise ConfigError(
                    f"expected networks of the size of those of {self.run}, got others: {error}; leave "
                    "--learning.hidden out"
                ) from None
            population.networks.renew_folds(trainer.generators["networks"])
            population.updates = self.updates
        genes, weights, knots = (
            torch.tensor(values, dtype=torch.float64)
            for values in (self.genes, self.cash_value, self.opportunity_knots)
        )
        population.genes, population.elites, population.examined = genes, list(self.elites), self.examined
        trainer.stand_on(population.cash_value.with_values(weights.to(trainer.device), knots.to(trainer.device)))
        trainer.champion = trainer.tested_champion()


def write_networks(path: Path, state: Mapping[str, Any]) -> str:
    """Write networks, as in `Population.load_networks`, to the folder of a run; return the sha256."""
    tensors, rest = state_tree.flatten(state)
    content = safetensors.torch.save(tensors, metadata={"rest": json.dumps(rest)})
    write_atomically(path / INHERITED_NETWORKS, content)
    return hashlib.sha256(content).hexdigest()


def read_networks(path: Path, sha256: str) -> dict[str, Any]:
    """Read the file of `write_networks`. Raises ConfigError where it is missing or has changed."""
    file = path / INHERITED_NETWORKS
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"expected the networks that a run inherited in {file}, got: {error.strerror}; restore it from a copy of "
            "the run, or extend anew"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ConfigError(
            f"expected the networks that a run inherited in {file}, with sha256 {sha256}, got {found}; restore it from "
            "a copy of the run, or extend anew"
        )
    with safetensors.safe_open(file, framework="pt") as opened:
        rest = json.loads(opened.metadata()["rest"])
    return dict(state_tree.unflatten(safetensors.torch.load(content), rest))


def run_to_extend(name: str, config: Config) -> RunLog:
    """Return the named run, or the newest one. Raises ConfigError if there is none, or with --resume."""
    if config.resume is not None:
        raise ConfigError("expected --extend for a new run or --resume for one that began, got both; leave one out")
    return RunLog.open(config.runs_dir, latest_run(config.runs_dir) if name == LATEST else name)


def extended_settings(parent: RunLog, config: Config, explicit: frozenset[str]) -> Config:
    """Return the settings of a new run: those of its parent, updated by those the user gave."""
    own = explicit | {"run", "resume", "runs_dir"}
    return with_settings(
        parent.settings(Config), {name: value for name, value in flatten(to_dict(config)).items() if name in own}
    )


def inherit(parent: RunLog, path: Path, market: Market) -> None:
    """Write to `path` what a new run inherits from its parent.

    Raises ConfigError where the parent has no generation, DataError where it was trained on other data or the data have
    no new days.
    """
    checkpoint = parent.newest_generation(settings_hash(parent.settings(Config)), lambda checkpoint: checkpoint)
    record = read_market_record(parent.path)
    last = np.datetime64(record.splits["holdout"][1], "D")
    is_same = is_recorded_market(market, record)
    if not is_same or market.dates[-1] <= last:
        raise DataError(
            f"expected the data of {parent.name} with days after {last}, got days to {market.dates[-1]} of "
            f"{'the same' if is_same else 'other'} data; give its file as it has grown"
        )
    population, cash_value = checkpoint.state["population"], checkpoint.state["cash_value"]
    networks = {name: population[name] for name in NETWORK_STATE if name in population}
    found = Inheritance(
        run=parent.name,
        generation=checkpoint.generation,
        genes=population["genes"].tolist(),
        elites=population["elites"],
        cash_value=cash_value["weights"].tolist(),
        opportunity_knots=cash_value["opportunity_knots"].tolist(),
        updates=population["updates"],
        examined=population["examined"],
        # Written before the file that names it.
        networks=write_networks(path, networks) if networks else "",
    )
    write_json(path / INHERITED, dataclasses.asdict(found))

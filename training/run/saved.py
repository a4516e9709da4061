"""A finished or interrupted run, opened for evaluation or use: its settings, market and champion."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from data.market import Market
from data.record import MARKET, pin_market
from data.synthetic.built_in import PlantedScores
from environment.benchmark import Benchmark
from models.ddpg_agent import DDPGAgent
from models.evidence import Evidence
from training.evaluation.baselines import BEST_AGENT, IN_FULL
from training.run.extension import INHERITED
from training.run.market import benchmark_of, load_market, read_market_record, scores_of
from utils.config.settings import settings_hash
from utils.config.trader import Config
from utils.errors import CheckpointError, ConfigError
from utils.runs.checkpoint import Checkpoint, list_checkpoints, read_manifest
from utils.runs.run_log import RunLog
from utils.runs.state_tree import misfit

_FULL = 0.995
"""Share of what is believed that is told as all."""


@dataclass(frozen=True, repr=False)
class SavedRun:
    """The settings, market and agents of a run, on one device."""

    path: Path
    config: Config
    """The settings that it began with."""
    market: Market
    """Its market, with the splits and normalisation of its training, on data that may be longer now."""
    planted_scores: PlantedScores | None
    """Scores of the built-in market's planted structure; None on data from a file."""
    device: torch.device
    generation: int
    champion: DDPGAgent
    """Of that generation."""
    best_agent: DDPGAgent
    """The fittest agent of that generation."""

    def __repr__(self) -> str:
        return f"SavedRun({self.path}, generation {self.generation})"

    @property
    def beside(self) -> dict[str, DDPGAgent]:
        """Return the agents that are judged beside the champion, by name."""
        in_full = {IN_FULL: self.champion.shrunk(1.0)} if self.champion.shrink < _FULL else {}
        return {**in_full, BEST_AGENT: self.best_agent}

    @cached_property
    def benchmark(self) -> Benchmark:
        """Return the benchmark, which the champion holds where nothing is known."""
        return benchmark_of(self.market, self.config)

    @property
    def evidence(self) -> Evidence:
        """Return what training days tell of the champion's orders."""
        return self.champion.evidence

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return self.path.name

    @property
    def extends(self) -> str:
        """Return the name of the run that it extends; empty for random initialisation."""
        return next((read_manifest(path).run_id for path in list_checkpoints(self.path / INHERITED).values()), "")


def open_saved_run(
    runs_dir: Path | str,
    name: str | None = None,
    *,
    data: Path | str | None = None,
    device: torch.device | str = "cpu",
) -> SavedRun:
    """Open the named run, or the newest one, at its newest generation that verifies.

    Args:
        data: parquet file to read instead of the run's own; it may have more days at the end.

    Raises:
        ConfigError: there is no such run, or it has no complete generation of this version.
        DataError: the data cannot be read, or differ from those of the run.
    """
    run, data = RunLog.open(Path(runs_dir), name), None if data is None else Path(data)
    config = run.settings(Config)

    def agents(checkpoint: Checkpoint) -> tuple[int, dict[str, DDPGAgent]]:
        states = {name: checkpoint.state[name] for name in ("champion", "best_agent")}
        for name, state in states.items():
            if problem := misfit(state, state, name):  # compared with itself it shows NaN
                raise CheckpointError(problem)
        return checkpoint.generation, {name: DDPGAgent.from_state(state, device) for name, state in states.items()}

    generation, saved = run.use_newest(settings_hash(config), agents)
    if data is not None and config.data is None:
        raise ConfigError(f"expected no --data for {run.path}, which was trained on the built-in market, got {data}")
    if not (run.path / MARKET).is_file():
        raise ConfigError(f"expected {MARKET} in {run.path}, got none; continue the run once with --resume {run.name}")
    # The record has the stocks that may be bought, so that their list may be gone.
    market = load_market(dataclasses.replace(config, data=data or config.data, investable=None))
    market = pin_market(market, read_market_record(run.path))
    return SavedRun(run.path, config, market, scores_of(config), torch.device(device), generation, *saved.values())

"""Rows of `benchmarks.speed`: evaluating a population, against the naive form of `benchmarks.speed.naive`."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.speed.harness import Row, random_market, seconds_of
from benchmarks.speed.naive import (
    Encode,
    RawMarket,
    WatchedEnvironment,
    encode_last_day,
    encode_whole_window,
    largest_difference,
    play_naive,
)
from data.market import Market, MarketTensors
from models.population import Population
from training.rollout import roll_out
from utils.config.trader import Config, EvolutionConfig

logger = logging.getLogger(__name__)
GROUP = "population evaluation"
TOLERANCE = 1e-4
"""Largest difference of an action's numbers, which reach 10 and 50."""
NAIVE_FORMS: dict[str, Encode] = {
    "naive, re-encodes the whole window": encode_whole_window,
    "naive, only the last day's tree": encode_last_day,
}


@dataclass(frozen=True)
class NaiveSample:
    """The agents and days on which the naive form is run; the rest is extrapolated from them."""

    agents: Sequence[int]
    days: int


@dataclass(frozen=True)
class EvaluationFigures:
    """Seconds of one window of all agents, and of one naive agent-day."""

    seconds: float
    naive_day_seconds: dict[str, float]
    difference: dict[str, float]
    """Largest difference of actions between the two, by naive form."""
    agent_days: int

    def ratio(self, form: str) -> float | None:
        """Return how many times as long the naive form takes; None where it does not act alike."""
        if self.difference[form] > TOLERANCE:
            return None
        return self.naive_day_seconds[form] * self.agent_days / self.seconds


def tenth_scale() -> tuple[Config, Market]:
    """Return 67 columns and 2 agents with encoders of their own, the whole context and the whole episode."""
    config = Config(evolution=EvolutionConfig(population_size=2))
    return config, random_market(config, 1400, 67, 11)


def independent(config: Config) -> Config:
    """Return the same settings with an encoder for each agent."""
    return replace(config, network=replace(config.network, representation="independent"))


def measure_evaluation(
    config: Config, market: Market, sample: NaiveSample, device: torch.device, *, repeats: int = 3
) -> EvaluationFigures:
    """Evaluate a new population on one window without noise, both ways, and compare their actions."""
    torch.manual_seed(config.seed)
    size, context = config.evolution.population_size, config.split.context_window_days
    population = Population(size, config.network, config.learning, context, device)
    env = WatchedEnvironment.on(market, config.env, device)
    tensors, start = MarketTensors.of(market, device), market.splits.train.first
    starts = torch.tensor([start], device=device)
    seconds = seconds_of(lambda: roll_out(env, population.networks, tensors, starts), device, repeats=repeats)
    actions = torch.stack(env.actions)  # (steps, agents, stocks, 2)
    raw = RawMarket.of(market, device)
    naive = {
        form: _measure_naive(population, env, raw, start, sample, encode, actions)
        for form, encode in NAIVE_FORMS.items()
    }
    return EvaluationFigures(
        seconds,
        {form: day_seconds for form, (day_seconds, _) in naive.items()},
        {form: difference for form, (_, difference) in naive.items()},
        size * config.env.episode_steps,
    )


def _measure_naive(
    population: Population,
    env: WatchedEnvironment,
    raw: RawMarket,
    start: int,
    sample: NaiveSample,
    encode: Encode,
    actions: Tensor,
) -> tuple[float, float]:
    """Return the seconds of an agent-day, median over agents, and the largest difference of actions."""
    play_naive(population.agent(0), env, raw, start, 1, encode)
    seconds, difference = [], 0.0
    for index in sample.agents:
        episode = play_naive(population.agent(index), env, raw, start, sample.days, encode)
        seconds.append(episode.seconds / sample.days)
        difference = max(difference, largest_difference(episode.actions, actions[: sample.days, index]))
    return statistics.median(seconds), difference


def evaluation_rows(name: str, figures: EvaluationFigures, is_extrapolated: bool) -> list[Row]:
    """Return the population's row, and one for each naive form with its cost against the population's."""
    rows = [
        Row(GROUP, f"{name}: one pass for the population", figures.seconds, "s", 1.0, "itself", "one window, no noise")
    ]
    for form, day_seconds in figures.naive_day_seconds.items():
        ratio, difference = figures.ratio(form), figures.difference[form]
        how = "extrapolated from a few days of a few agents" if is_extrapolated else "run in full"
        verdict = (
            f"actions differ by {difference:.1e} at most" if ratio else f"NOT ALIKE: actions differ by {difference}"
        )
        note = f"{day_seconds * 1000:.1f} ms an agent-day; {how}; {verdict}"
        rows.append(Row(GROUP, f"{name}: {form}", day_seconds * figures.agent_days, "s", ratio, "naive / ours", note))
    return rows

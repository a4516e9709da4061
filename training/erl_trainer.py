"""The phases of evolutionary reinforcement learning (Khadka and Tumer 2018): evaluate, evolve, train, validate.

In the paper one agent learns by gradient beside a population that only evolves, and is copied into it now and then.
Here all agents of the population learn by gradient from the shared replay buffer, so that there is nobody to copy;
evolution selects them, mutates their actors, and breeds the numbers that gradients do not reach, see
`models.evolution`.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from data.features.rows import InputRows
from data.loader import StockDataLoader
from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.trading_env import Days, TradingEnvironment
from models import ddpg
from models.ddpg import LOSSES
from models.ddpg_agent import HISTORY, DDPGAgent
from models.evidence import Evidence
from models.evolution import next_generation
from models.policy import Forecasts
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.cuda_graph import CudaGraph
from training.forecasts.training_days import TrainingDays
from training.generation_log import GenerationLog
from training.rollout import PopulationResults, PopulationRollouts, Windows, roll_out
from utils.config.trader import EvaluationConfig, LearningConfig
from utils.progress import progress
from utils.runs.console import FILE_ONLY
from utils.runs.devices import named_generator, random_state, set_random_state

logger = logging.getLogger(__name__)
STREAMS = ("windows", "evolution", "networks", "sight", "noise", "batches")
"""Random streams by purpose, all drawn on the CPU: `networks` of first weights, founders' feature groups and noise on
actors, `sight` of children's feature groups, `noise` of exploration."""


class UpdateInputs(NamedTuple):
    """What differs from one update of the networks to the next."""

    rows: Tensor
    """(folds, D, S) of the stocks."""
    replayed: Tensor
    """(folds, D) rows of the replay buffer, of the same days."""
    gamma: Tensor
    """(P,) discounts."""


def random_streams(seed: int) -> dict[str, torch.Generator]:
    """Return a generator for each of `STREAMS`."""
    return {name: named_generator(seed, name) for name in STREAMS}


class ERLTrainer:
    """The phases of a generation, on what `training.train` builds once for all generations."""

    def __init__(
        self,
        market: Market,
        days: TrainingDays,
        eval_env: TradingEnvironment,
        val_env: TradingEnvironment,
        population: Population,
        replay_buffer: ReplayBuffer,
        learning: LearningConfig,
        evaluation: EvaluationConfig,
        generators: Mapping[str, torch.Generator],
        *,
        log: GenerationLog,
        safe_point: Callable[[], None] = lambda: None,
        data_loader: StockDataLoader | None = None,
    ) -> None:
        """Start the networks; `safe_point` is called between steps of work and may raise to stop.

        Args:
            eval_env: agents are evaluated in it, and the champion is validated in `val_env`.
            generators: by `STREAMS`.
        """
        self.market, self.training_days, self.data_loader = market, days, data_loader
        self.eval_env, self.val_env = eval_env, val_env
        self.population, self.replay_buffer, self.generators = population, replay_buffer, generators
        self.learning, self.evaluation, self.log, self.safe_point = learning, evaluation, log, safe_point
        self.rollouts = PopulationRollouts(days, safe_point)
        self.normalization_stats, splits = market.stats, market.splits
        self.train_start_idx, self.train_end_idx = splits.train.first, splits.train.last
        self.val_start_idx = splits.validation.first
        self.graph = CudaGraph("updates")
        self.played: PopulationResults
        """Results of the last evaluation."""
        self.measures, self.validation = dict[str, float](), dict[str, float]()
        """Of this generation's learning, and of its champion on the validation windows."""
        self.fitness_history: deque[float] = deque(maxlen=HISTORY)
        """Largest fitness of each of the last evaluations."""
        self.best_fitness = math.nan
        """Largest of all evaluations, each of which has windows of its own; NaN before the first one."""
        self._best_ever = self.population.fittest_agent.state_dict()
        self._later: tuple[InputRows, Tensor] | None = (days.later, days.relative_risk)
        self._usual_of_fittest: float | None = None  # where training has ended

    def evaluate_population(self) -> tuple[Tensor, dict[str, float]]:
        """Play all agents out of fold on windows of training days; fill the replay buffer.

        Returns (P,) fitness, and counts and costs of all episodes; `played` has all results.
        """
        timing = self.champion.timing if self.population.examined else 0.0
        windows, most = self.draw_windows(), self.replay_buffer.capacity
        self.played, transitions = self.rollouts.evaluate(self.population, windows, most, timing, env=self.eval_env)
        self.replay_buffer.add(transitions)
        self.population.select_elites(self.played.fitness)
        fitness = float(self.population.fitness[self.population.elites[0]])
        self.fitness_history.append(fitness)
        if math.isnan(self.best_fitness) or fitness > self.best_fitness:
            self.best_fitness, self._best_ever = fitness, self.population.fittest_agent.state_dict()
        self.measures = self.log.learning(self.played, self.population, self.learning.exploration_noise)
        return self.played.fitness, self.played.trading

    def draw_windows(self) -> Windows:
        """Draw the windows of an evaluation, those of exploration last, and the noise of exploration."""
        train, steps, draws = self.market.splits.train, self.eval_env.rules.episode_steps, self.generators["windows"]
        fitness, exploration = self.evaluation.fitness_windows, self.evaluation.exploration_windows
        starts = torch.cat([random_windows(train, steps, count, draws) for count in (fitness, exploration)])
        noise = torch.randn(exploration, steps, len(self.eval_env.tickers), generator=self.generators["noise"])
        return Windows(starts, self.learning.exploration_noise * noise)

    def evolve_population(self) -> None:
        """Replace all agents but the elites, which keep their rows, by mutated children of the fittest."""
        population, draws = self.population, self.generators["evolution"]
        bred = next_generation(population.genes, self.played.fitness, population.evolution, draws)
        population.inherit(*bred, self.generators)

    def train_population(self) -> dict[str, float]:
        """Take the gradient steps of a generation, once the buffer is ready, and build the champion from the elites.

        Returns:
            Losses for the record; nothing without gradient steps.
        """
        self.safe_point()
        population, learning, replay = self.population, self.learning, self.replay_buffer
        transitions, losses = self.training_days.transitions, list[Tensor]()
        if learning.gradient_steps and replay.is_ready and replay.has_days(transitions.allowed):
            # What all steps learn from is drawn beforehand; `ddpg.update` splits it into micro-batches.
            draws, stocks = self.generators["batches"], learning.batch_size * learning.gradient_accumulation
            days, steps = max(1, round(stocks / transitions.stocks_per_day)), learning.gradient_steps
            replay_rows = replay.sample(days, draws, batches=steps, allowed=transitions.allowed)
            stock_rows = transitions.draw(replay.at(replay_rows).day, draws)
            for now in progress(range(steps), "Training agents", "update"):
                self.safe_point()
                inputs = UpdateInputs(stock_rows[now], replay_rows[now], population.gammas)
                losses.append(self.graph.run(self.update_networks, inputs, population.networks).clone())
                population.updates += 1
        elif learning.gradient_steps:
            logger.info("%s", replay, extra=FILE_ONLY)
        means = population.note_losses(dict(zip(LOSSES, torch.stack(losses, dim=1), strict=True))) if losses else {}
        self.champion = self.build_champion()
        self.measures |= means | {f"evidence_{name}": value for name, value in vars(self.champion.evidence).items()}
        return means

    def update_networks(self, inputs: UpdateInputs) -> Tensor:
        """Take one step of all agents' networks; return their (2, P) losses.

        On a card this is a launch of one CUDA graph: it reads no host memory, and the next step overwrites them.
        """
        learning, transitions = self.learning, self.training_days.transitions
        batch = transitions.batch(inputs.rows, self.replay_buffer.at(inputs.replayed))
        how = {"cost": transitions.cost, "tau": learning.tau}
        return ddpg.update(self.population.networks, inputs.gamma, batch, learning.gradient_accumulation, **how)

    @cached_property
    def champion(self) -> DDPGAgent:
        """The elites of the last generation in one agent, which is deployed.

        `train_population` sets it; before that it is made when asked for.
        """
        return self.build_champion()

    def build_champion(self) -> DDPGAgent:
        """Return the committee of the elites, whose forecasts are followed as far as its orders out of fold say."""
        population = self.population
        champion = population.committee(population.elites)
        forecasts = self.training_days.forecasts(population.networks.target, population.elites)
        lead = self.training_days.lead(forecasts, len(population))
        score, level = (part.mean(0, keepdim=True) for part in (forecasts.score, forecasts.level))
        mean = Forecasts(score, level, forecasts.risk)
        genes, train = champion.acting_genes, self.market.splits.train
        (selected, timed), costs = self.rollouts.out_of_fold(mean, genes, train, env=self.eval_env)
        evidence = Evidence.of(selected, population.trials, lead, timed, costs)
        believed = {
            "weigh": (evidence.shrink, evidence.timing),
            "report": (1.0, 1.0),
            "require": (float(evidence.is_significant), float(evidence.is_timing_significant)),
        }
        shrink, timing = believed[self.evaluation.evidence]
        evidence = replace(evidence, shrink=shrink, timing=timing)
        return replace(champion, evidence=evidence, usual=self._usual(champion)).believed(shrink, timing)

    def _usual(self, agent: DDPGAgent) -> float:
        """Return the usual level of an agent's scores."""
        return float(self.training_days.usual(agent.networks.target, range(len(agent.genes))).mean())

    @property
    def generation(self) -> int:
        """Generations so far."""
        return self.log.generation

    @property
    def generation_times(self) -> list[float]:
        """Seconds of the last generations."""
        return [sum(phases.values()) for phases in self.log.seconds]

    @property
    def device(self) -> torch.device:
        """Device of accounts and networks."""
        return self.eval_env.account.device

    @property
    def best_agent(self) -> DDPGAgent:
        """A copy of the agent that had `best_fitness`, as it was then."""
        return DDPGAgent.from_state(self._best_ever, self.device).clone()

    @property
    def fittest_agent(self) -> DDPGAgent:
        """A clone of the fittest agent of the last evaluation, with the champion's evidence and shrink."""
        agent, champion, usual = self.population.fittest_agent, self.champion, self._usual_of_fittest
        usual = self._usual(agent) if usual is None else usual
        return replace(agent, evidence=champion.evidence, usual=usual).believed(champion.shrink, champion.timing)

    @torch.no_grad()
    def run_episode(
        self, agent: DDPGAgent, env: TradingEnvironment, start_idx: Days, end_idx: Days, training: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        """Play an agent, as deployed, on one window or on many of equal length as lanes; the last days are settlement.

        Args:
            training: it explores, its forecasts followed in full, and its transitions enter the replay buffer;
                ValueError for other than training days.

        Returns:
            The profit over the benchmark, percent of the initial capital, and the summary of the episode.
        """
        # Windows that cannot be played are refused here.
        env.reset(start_idx=start_idx, end_idx=end_idx, trading_end_idx=end_idx - env.rules.settlement_days)
        steps, starts = env.account.steps, torch.as_tensor(start_idx).reshape(-1)
        played, train = slice(int(starts.min()), int(starts.max()) + steps), self.market.splits.train
        if training and (played.start < train.first or played.stop > train.last):
            days = f"{train.first} to {train.last}, got {played.start} to {played.stop}"
            raise ValueError(f"expected training days {days}; choose others, or training=False")
        noise = None
        if training:  # the prices of capital are replayed beside values that nothing shrinks
            agent = agent.shrunk(1.0)
            drawn = torch.randn(len(starts), steps, len(env.tickers), generator=self.generators["noise"])
            noise = self.learning.exploration_noise * float(agent.networks.scale[0]) * drawn
        rollout = roll_out(
            env.portfolio,
            self._forecasts(agent, played),
            agent.acting_genes,
            starts,
            steps,
            noise=noise,
            shrink=agent.shrink,
            timing=agent.timing,
            label="Playing an agent",
            trading_steps=env.account.trading_steps,
            is_flat_at_end=True,
            keeps_trades=True,
        )
        if training:
            self.replay_buffer.add({name: part.flatten() for name, part in rollout.transitions.items()})
        summary = env.get_episode_summary()
        return summary["excess_percent"], summary

    def _forecasts(self, agent: DDPGAgent, days: slice) -> Forecasts:
        if self._later is not None:
            rows, risk = self._later
            if rows.days.start <= days.start and days.stop <= rows.days.stop:
                return agent.forecasts_of_rows(rows, risk, rows.blocks())
        return agent.forecasts(self.market, days)

    def validate_best_agent(self) -> dict[str, float]:
        """Play the champion on the validation windows; nothing is selected by the result.

        Returns:
            Mean profits in percent of the initial capital: of the champion, of its agents if their forecasts were
            followed in full, and of the benchmark; and the standard error of what its agents add to that.
        """
        rules, span = self.val_env.rules, self.market.splits.validation
        starts = spaced_windows(span, rules.episode_steps, self.evaluation.validation_windows)
        self.safe_point()
        champion, days = self.champion, slice(int(starts.min()), int(starts.max()) + rules.episode_steps)
        in_full = champion.shrunk(1.0)
        played = roll_out(
            self.val_env.portfolio,
            self._forecasts(champion, days),
            torch.cat((champion.acting_genes, in_full.acting_genes)),
            starts,
            rules.episode_steps,
            shrink=torch.tensor([champion.shrink, in_full.shrink], dtype=torch.float64),
            timing=champion.timing,
            label="Validating agent",
        )
        percent = 100 * (played.equity[-1].mean(1) / rules.initial_capital - 1)
        result = dict(zip(("champion", "agents"), percent.tolist(), strict=True))
        result["benchmark"] = 100 * (float(played.benchmark[-1].mean()) / rules.initial_capital - 1)
        if len(starts) > 1:  # of windows that overlap only as many count as fit side by side
            apart = min(len(starts), max(1, span.days // rules.episode_steps))
            result["added_error"] = float(played.excess[1].std()) / math.sqrt(apart)
        self.validation = result
        return result

    def record(self) -> dict[str, Any]:
        """Return the record of the generation for the metrics."""
        return self.log.record(self.played, self.measures, self.validation, self.replay_buffer)

    def end_training(self) -> None:
        """Free what evaluating, training and validating need, such as the inputs of the training days."""
        self._usual_of_fittest = self.fittest_agent.usual
        self._later = None
        del self.training_days, self.rollouts, self.graph

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, as nested dicts of tensors and JSON values.

        The inputs of the training days follow from the market.
        """
        return {
            "population": self.population.state_dict(),
            "champion": self.champion.state_dict(),
            "best_agent": self.fittest_agent.state_dict(),
            "best_ever": self._best_ever,
            "replay": self.replay_buffer.state_dict(),
            "progress": {
                "generation": self.log.generation,
                "device": str(self.device),
                "seconds": list(self.log.seconds),
                "fitness_history": list(self.fitness_history),
                "best_fitness": self.best_fitness,
            },
            "random": {
                "named": {name: generator.get_state() for name, generator in self.generators.items()},
                "global": random_state(),
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        progress, device = state["progress"], self.device
        self.log.generation = progress["generation"]
        self.log.seconds = deque(progress["seconds"], maxlen=HISTORY)
        self.fitness_history = deque(progress["fitness_history"], maxlen=HISTORY)
        self.best_fitness, self._best_ever = progress["best_fitness"], state["best_ever"]
        self.population.load_state_dict(state["population"])
        self.champion = DDPGAgent.from_state(state["champion"], device)
        self.replay_buffer.load_state_dict(state["replay"])
        for name, generator in self.generators.items():
            generator.set_state(state["random"]["named"][name])
        set_random_state(state["random"]["global"])

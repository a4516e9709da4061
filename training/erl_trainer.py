"""The loop of evolutionary reinforcement learning (Khadka and Tumer 2018): evaluate, evolve, train, validate.

In the paper one agent learns by gradient beside a population that only evolves, and is copied into it now and then.
Here all agents of the population learn by gradient from the shared replay buffer, so that there is nobody to copy;
evolution selects them, mutates their actors, and breeds the two numbers that gradients do not reach, see
`models.evolution`.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.basket import Basket
from environment.trading_env import Days, TradingEnvironment
from models.ddpg import LOSSES
from models.ddpg_agent import HISTORY, DDPGAgent
from models.evolution import next_generation
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.forecasts.training_days import TrainingDays
from training.generation_log import GenerationLog
from training.rollout import PopulationResults, PopulationRollouts, Windows, play_agent_on
from training.updates import UpdateInputs, Updates
from utils.config.trader import Config, EvaluationConfig, EvolutionConfig, LearningConfig
from utils.memory.guard import require_memory
from utils.memory_profiler import MemoryProfiler
from utils.progress import progress
from utils.runs.console import FILE_ONLY
from utils.runs.seeding import named_generator, random_state, set_random_state

logger = logging.getLogger(__name__)
STREAMS = ("windows", "evolution", "networks", "sight", "noise", "batches")
"""Random streams by purpose, all drawn on the CPU: `networks` of first weights, founders' feature groups and noise on
actors, `sight` of children's feature groups, `noise` of exploration."""
PHASES = ("evaluate", "evolve", "train", "validate", "checkpoint")
"""Of a generation, in their order; the caller of the trainer writes the checkpoint."""


class ERLTrainer:
    """Owns what lives as long as the run: environments, population and replay buffer."""

    def __init__(
        self,
        market: Market,
        env: TradingEnvironment,
        learning: LearningConfig,
        evolution: EvolutionConfig,
        evaluation: EvaluationConfig,
        *,
        seed: int,
        log: GenerationLog,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the first generation; `safe_point` is called between steps of work and may raise to stop.

        Args:
            env: agents are evaluated in it, and the champion validated in one like it.
        """
        self.market, self.eval_env = market, env
        logger.info("Initializing persistent validation environment...", extra=FILE_ONLY)
        self.val_env = env.twin()
        self.basket = Basket.of(market, evaluation.basket, seed)
        self.learning, self.evaluation, self.log, self.safe_point = learning, evaluation, log, safe_point
        self.training_days = training_days = TrainingDays.of(market, env.account, learning.risk_aversion)
        self.rollouts = PopulationRollouts(
            training_days, env=self.eval_env, safe_point=safe_point, risk_aversion=learning.risk_aversion
        )
        self._require_memory(evolution)
        self.generators = {name: named_generator(seed, name) for name in STREAMS}
        device = env.account.device
        self.population = Population(
            evolution,
            learning,
            training_days.inputs,
            env.rules,
            device,
            self.generators,
            folds=training_days.folds,
            scale=training_days.transitions.reward_scale,
            risk=None if training_days.risk is None else training_days.risk[-1],  # fitted to all folds
        )
        self._start_weights = training_days.closed_form(learning.gamma) if learning.warm_start else None
        if self._start_weights is not None:
            self.population.start_from(self._start_weights)
        self.replay = ReplayBuffer(learning.replay_capacity, learning.training_starts, device)
        self.updates = Updates(
            training_days.transitions,
            self.replay,
            learning.gradient_accumulation,
            gamma=learning.gamma,
            tau=learning.tau,
        )
        self.played: PopulationResults
        """Results of the last evaluation."""
        self.fitness_history: deque[float] = deque(maxlen=HISTORY)
        """Largest fitness of each of the last evaluations."""
        self.best_fitness = math.nan
        """Largest of all evaluations, each of which has windows of its own; NaN before the first one."""
        self._best_ever = self.population.fittest_agent.state_dict()

    def _require_memory(self, evolution: EvolutionConfig) -> None:
        """Raise ConfigError where a generation, or the judgement of the champion, takes more memory than is free."""
        learning, evaluation, lane = self.learning, self.evaluation, self.eval_env.account.lane_size
        agents, judged = {"--population-size": evolution.population_size}, self.market.splits.validation.days
        played = {"--population-size": len(self.rollouts.groups(evolution.population_size)[0])}
        pickers = {"--evaluation.random-pickers": evaluation.random_pickers, "windows": judged // lane["sessions"] + 1}
        batch = {"--learning.batch-size": learning.batch_size, "folds": self.training_days.folds}
        drawn = {"--learning.gradient-steps": learning.gradient_steps, **batch}
        drawn["--learning.gradient-accumulation"] = learning.gradient_accumulation
        parts: dict[str, dict[str, float]] = {
            "fitness": {**played, "--evaluation.fitness-windows": evaluation.fitness_windows, **lane},
            "exploration": {**played, "--evaluation.exploration-windows": evaluation.exploration_windows, **lane},
            "random pickers": {**pickers, **lane},
            "selection": {**agents, "--evolution.tournament-size": evolution.tournament_size, "bytes": 24},
            "updates": {**agents, **batch, "--learning.hidden": learning.hidden, "bytes": 32},
            "batches": {**drawn, "bytes": 48},
        }
        for what, factors in parts.items():
            require_memory(what, factors)

    def run(self, generations: int) -> Iterator[dict[str, Any]]:
        """Run until this number of generations is complete; yield each record once the state may be saved."""
        while self.log.generation < generations:
            yield self.run_generation()

    def run_generation(self) -> dict[str, Any]:
        """Run one generation and return its record for the metrics."""
        self.log.begin(self.log.generation + 1)
        with self.log.phase("evaluate"):
            self.evaluate_population()
        measures = self.log.learning(self.played, self.population, self.learning.exploration_noise)
        with self.log.phase("evolve"):
            self.evolve_population(self.played.fitness)
        with self.log.phase("train"):
            measures |= self.train_population()
        with self.log.phase("validate"):
            validation = self.validate_best_agent()
        measures |= {f"evidence_{name}": value for name, value in vars(self.champion.evidence).items()}
        return self.log.record(self.played, measures, validation, self.replay)

    def evaluate_population(self) -> tuple[Tensor, dict[str, float]]:
        """Play all agents out of fold on windows of training days; fill the replay buffer.

        Returns (P,) fitness, and counts, penalties and costs of all episodes; `played` has all results.
        """
        self.played, transitions = self.rollouts.evaluate(self.population, self.draw_windows(), self.replay.capacity)
        self.replay.add(transitions)
        self.population.reward_rate.copy_(self.replay.reward_rate())  # which sets the agents' hurdles
        self.population.select_elites(self.played.fitness)
        fitness = float(self.population.fitness[self.population.elites[0]])
        self.fitness_history.append(fitness)
        if math.isnan(self.best_fitness) or fitness > self.best_fitness:
            self.best_fitness, self._best_ever = fitness, self.population.fittest_agent.state_dict()
        return self.played.fitness, self.played.trading

    def draw_windows(self) -> Windows:
        """Draw the windows of an evaluation, those of exploration last, and the noise of exploration."""
        train, rules, draws = self.market.splits.train, self.eval_env.rules, self.generators["windows"]
        fitness, exploration = self.evaluation.fitness_windows, self.evaluation.exploration_windows
        counts = [count for count in (fitness, exploration) if count]
        starts = torch.cat([random_windows(train, rules.episode_steps, count, draws) for count in counts])
        shape = len(self.population), exploration, rules.trading_days
        noise = torch.randn(shape, generator=self.generators["noise"])
        return Windows(starts, self.learning.exploration_noise * noise)

    def evolve_population(self, fitness: Tensor) -> None:
        """Replace all agents but the elites, which keep their rows, by mutated children of the fittest."""
        population = self.population
        bred = next_generation(population.genes, fitness, population.evolution, self.generators["evolution"])
        population.inherit(*bred, self.generators)

    def train_population(self) -> dict[str, float]:
        """Take the gradient steps of a generation, once the buffer is ready, and build the champion from the elites.

        Returns:
            Losses for the record; nothing without gradient steps.
        """
        self.safe_point()
        allowed = self.training_days.transitions.allowed
        losses = dict[str, float]()
        if self.learning.has_gradients and self.replay.is_ready and self.replay.has_days(allowed):
            losses = self._take_gradient_steps(allowed)
        elif self.learning.has_gradients:
            logger.info("%s", self.replay, extra=FILE_ONLY)
        self.champion = self.build_champion()
        return losses

    def _take_gradient_steps(self, allowed: Tensor) -> dict[str, float]:
        """Take the steps on (folds, days) allowed days; what they learn from is drawn beforehand."""
        population, learning, draws = self.population, self.learning, self.generators["batches"]
        transitions = self.training_days.transitions
        # All micro-batches of an update at once: `ddpg.update` splits them.
        stocks = learning.batch_size * learning.gradient_accumulation
        days = max(1, round(stocks / transitions.stocks_per_day))
        replay_rows = self.replay.sample(days, draws, batches=learning.gradient_steps, allowed=allowed)
        stock_rows = transitions.draw(self.replay.at(replay_rows).day, draws)
        hurdle, sale_target_index = population.hurdles, population.sale_target_indices
        losses = list[Tensor]()
        for now in progress(range(learning.gradient_steps), "Training agents", "update"):
            self.safe_point()
            inputs = UpdateInputs(stock_rows[now], replay_rows[now], hurdle, sale_target_index)
            losses.append(self.updates.run(population, inputs).clone())
            population.updates += 1
        return population.note_losses(dict(zip(LOSSES, torch.stack(losses, dim=1), strict=True)))

    @cached_property
    def champion(self) -> DDPGAgent:
        """The elites of the last generation in one agent, which is deployed.

        `train_population` sets it; before that it is made when asked for.
        """
        return self.build_champion()

    def build_champion(self) -> DDPGAgent:
        """Return the committee of the elites, tested by its out-of-fold forecasts of the training days.

        Its evidence sizes the share of the capital that follows it; the rest holds the basket.
        """
        population = self.population
        champion = population.committee(population.elites)
        forecasts = self.training_days.forecasts(population.networks.target, population.elites)
        champion.evidence = evidence = self.training_days.evidence(forecasts, population.trials, len(population))
        shares = {"weigh": evidence.share, "report": 1.0, "require": float(evidence.is_significant)}
        return champion.with_share(shares[self.evaluation.evidence])

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
    def closed_form(self) -> DDPGAgent | None:
        """The champion without what its networks learned; None for a run that started from random numbers."""
        if self._start_weights is None:
            return None
        start = self.population.closed_form(self._start_weights, self.population.elites)
        return start.with_share(self.champion.share)

    @property
    def fittest_agent(self) -> DDPGAgent:
        """A clone of the fittest agent of the last evaluation, with the champion's evidence and share."""
        best = self.population.fittest_agent
        best.evidence = self.champion.evidence
        return best.with_share(self.champion.share)

    def run_episode(
        self, agent: DDPGAgent, env: TradingEnvironment, start_idx: Days, end_idx: Days, training: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        """Play an agent, as deployed, on one window or on many of equal length as lanes; the last days are settlement.

        Args:
            training: it explores, and its transitions enter the replay buffer; ValueError for other than training days.

        Returns:
            The sum of the rewards, less the penalty for an episode without a trade; and the summary of the episode.
        """
        trading_end_idx = end_idx - env.rules.settlement_days
        # Windows that cannot be played are refused here.
        env.reset(start_idx=start_idx, end_idx=end_idx, trading_end_idx=trading_end_idx, observe=False)
        starts, lengths = torch.as_tensor(start_idx), (env.account.steps, env.account.trading_steps)
        played, later = slice(int(starts.min()), int(starts.max()) + lengths[0]), self.training_days.later
        if later.days.start <= played.start and played.stop <= later.days.stop:
            forecasts = agent.forecasts_of_rows(later, len(self.market.dates))
        else:
            forecasts = agent.forecasts(self.market, played)
        how: dict[str, Any] = {"label": "Validating agent", "lengths": lengths}
        if training:
            train = self.market.splits.train
            if played.start < train.first or played.stop > train.last:
                days = f"{train.first} to {train.last}, got {played.start} to {played.stop}"
                raise ValueError(f"expected training days {days}; choose others, or training=False")
            noise = torch.randn(1, starts.numel(), lengths[1], generator=self.generators["noise"])
            deviation = self.learning.exploration_noise * agent.networks.scale[:1, None, None]
            noise = noise.to(deviation) * deviation
            how = {"label": "Training agent", "lengths": lengths, "noise": noise, "records": True}
        rollout = play_agent_on(env, agent, forecasts, starts.reshape(-1), **how)
        if training:
            self.replay.add({name: part.flatten(0, 2) for name, part in rollout.transitions.items()})
        summary = env.get_episode_summary()
        info = summary if starts.dim() else {name: value.item() for name, value in summary.items()}
        return info["fitness"], info

    def validate_best_agent(self) -> dict[str, float]:
        """Play the champion on the validation windows, its agents and its basket; nothing is selected by the result.

        Returns:
            Mean profits in percent of the initial capital: of the champion, of its agents if all orders were theirs,
            of its basket, and, once networks have learned, of the closed form that they started from; and the standard
            error of what its agents add to it.
        """
        rules, span = self.val_env.rules, self.market.splits.validation
        starts = spaced_windows(span, rules.episode_steps, self.evaluation.validation_windows)
        self.safe_point()
        ends = starts + rules.episode_steps

        def profits(agent: DDPGAgent) -> Tensor:
            _, summary = self.run_episode(agent, self.val_env, starts, ends, training=False)
            return torch.from_numpy(summary["profit_percent"])

        of_agents = profits(self.champion)
        agents = float(of_agents.mean())
        equity = self.basket.hold(rules, starts, rules.episode_steps).equity[:, -1].mean()
        basket, share = 100 * (float(equity) / rules.initial_capital - 1), self.champion.share
        champion = rules.exposure * (share * agents + (1 - share) * basket)
        result = {"champion": champion, "agents": agents, "basket": basket}
        if self.population.updates and (closed_form := self.closed_form) is not None:
            added = of_agents - profits(closed_form)
            result["closed_form"] = agents - float(added.mean())
            if len(added) > 1:  # windows that overlap are dependent: only as many count as fit side by side
                apart = min(len(added), max(1, span.days // rules.episode_steps))
                result["added_error"] = float(added.std()) / math.sqrt(apart)
        return result

    def end_training(self) -> None:
        """Free what evaluating, training and validating need, such as the inputs of the training days."""
        del self.training_days, self.rollouts, self.updates

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, as nested dicts of tensors and JSON values.

        The inputs of the training days follow from the market.
        """
        return {
            "population": self.population.state_dict(),
            "champion": self.champion.state_dict(),
            "best_agent": self.fittest_agent.state_dict(),
            **({} if (start := self.closed_form) is None else {"closed_form": start.state_dict()}),
            "best_ever": self._best_ever,
            "replay": self.replay.state_dict(),
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
        self.replay.load_state_dict(state["replay"])
        for name, generator in self.generators.items():
            generator.set_state(state["random"]["named"][name])
        set_random_state(state["random"]["global"])


def build_trainer(
    config: Config,
    market: Market,
    device: torch.device,
    *,
    safe_point: Callable[[], None] = lambda: None,
    profiler: MemoryProfiler | None = None,
) -> ERLTrainer:
    """Build the trainer that the settings describe; a profiler also watches its memory."""
    logger.info("Initializing persistent evaluation environment...", extra=FILE_ONLY)
    env = TradingEnvironment.on(market, config.env, device)
    log = GenerationLog(config.generations, device, profiler, counts=config.memory_report != "off")
    settings = config.learning, config.evolution, config.evaluation
    return ERLTrainer(market, env, *settings, seed=config.seed, log=log, safe_point=safe_point)

"""The generation loop of ERL (Khadka and Tumer 2018): evaluate, evolve, train, validate."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.trading_env import Days, TradingEnvironment, windows_from
from models.cash_value import CashValue, improve
from models.ddpg_agent import LOSSES, DDPGAgent
from models.evolution import next_generation
from models.population import Population, target_percents
from models.replay_buffer import ReplayBuffer
from models.trader import Blend, Forecasts
from training.ddpg import Updates, update
from training.forecasts.ridge import SkillTest, TrainingDays
from training.forecasts.samples import Float32Array
from training.generation_log import HISTORY, GenerationLog
from training.rollout import PopulationResults, PopulationRollouts, Windows, roll_out
from utils.config.trader import Config, EvaluationConfig, EvolutionConfig, LearningConfig
from utils.memory_profiler import MemoryProfiler
from utils.progress import progress
from utils.runs.seeding import named_generator, random_state, set_random_state
from utils.spaces import TARGET_PERCENTS

logger = logging.getLogger(__name__)
STREAMS = ("windows", "evolution", "networks", "sight", "noise", "batches")
"""Random streams by purpose, all drawn on the CPU."""
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
        self.market, self.eval_env, self.val_env = market, env, env.twin()
        self.learning, self.evaluation, self.log, self.safe_point = learning, evaluation, log, safe_point
        self.days = TrainingDays.of(market, env.account, learning.risk_aversion)
        self.rollouts = PopulationRollouts(
            self.days,
            env=self.eval_env,
            train=market.splits.train,
            safe_point=safe_point,
            risk_aversion=learning.risk_aversion,
        )
        self.generators = {name: named_generator(seed, name) for name in STREAMS}
        device, folds, orders = env.account.device, len(self.days.samples.folds), env.account.orders_per_day
        learn = partial(update, gamma=learning.gamma, tau=learning.tau)
        outcomes = self.days.relative.outcomes if learning.has_networks else None
        parts = self.days.inputs, env.rules, outcomes, folds, device, self.generators, learn
        self.population = Population(evolution, learning, *parts)
        kept = learning.replay_capacity, orders, learning.training_starts, device
        self.replay = ReplayBuffer(*kept, has_risk=learning.risk_aversion > 0)
        self.updating = Updates(learn, self.replay, learning.gradient_accumulation)
        self.forecasts: tuple[Forecasts, Blend] | None = None
        """Of all agents with networks, out of fold; by them the champion was tested, and agents are evaluated next."""
        self.stand_on(self.population.cash_value)
        self.champion = self.tested_champion()
        """The elites of the last generation in one agent, which is deployed."""

    def stand_on(self, cash_value: CashValue) -> None:
        """Fit ridge regressions to the genes, by fold and on all training days, for agents with this value of cash."""
        self.population.stand_on(self.days.fit(self.population.genes, len(self.population)), cash_value)

    def run(self, generations: int) -> Iterator[dict[str, Any]]:
        """Run until this number of generations is complete; yield each record once the state may be saved."""
        while self.log.generation < generations:
            yield self.run_generation()

    def run_generation(self) -> dict[str, Any]:
        """Run one generation and return its record for the metrics."""
        self.log.begin(self.log.generation + 1)
        with self.log.phase("evaluate"):
            played = self.evaluate_population()
        learning = self.log.learning(played, self.population, self.learning.exploration_noise)
        with self.log.phase("evolve"):
            self.evolve_population(played.fitness)
        with self.log.phase("train"):
            learning |= self.train_population()
        with self.log.phase("validate"):
            validation = self.validate_best_agent()
        learning |= {f"p_value_{name}": chance for name, chance in vars(self.champion.evidence).items()}
        return self.log.record(played, learning, validation, self.replay, has_networks=self.learning.has_networks)

    def evaluate_population(self) -> PopulationResults:
        """Play all agents on windows of training days by what did not learn from them; fill the replay buffer."""
        known, self.forecasts = self.forecasts, None  # they would take memory until the end of the training
        parts = self.population, self.draw_windows(), self.replay.capacity, known
        played, transitions = self.rollouts.evaluate(*parts)
        if transitions:
            self.replay.add(transitions)
        self.population.evaluated(played.fitness, played.blend)
        return played

    def draw_windows(self) -> Windows:
        """Draw the windows of an evaluation, those of exploration last, and the noise of exploration."""
        train, rules, draws = self.market.splits.train, self.eval_env.rules, self.generators["windows"]
        fitness, exploration = self.evaluation.fitness_windows, self.evaluation.exploration_windows
        counts = [count for count in (fitness, exploration) if count]
        starts = torch.cat([random_windows(train, rules.episode_steps, count, draws) for count in counts])
        drawn = torch.rand(len(self.population), exploration, generator=draws, dtype=torch.float64)
        shape = *drawn.shape, rules.trading_days if self.learning.has_networks else 0
        noise = torch.randn(shape, generator=self.generators["noise"], dtype=torch.float64)
        return Windows(starts, drawn, self.learning.exploration_noise * noise)

    def evolve_population(self, fitness: Tensor) -> None:
        """Replace all agents but the elites by mutated children of the fittest."""
        population = self.population
        bred = next_generation(population.genes, fitness, population.evolution, self.generators["evolution"])
        population.inherit(*bred, self.generators)
        self.stand_on(population.cash_value)

    def train_population(self) -> dict[str, float]:
        """Improve the value of cash by least squares and the networks by gradient; build the champion from the elites.

        Returns:
            Losses for the record; nothing without networks.
        """
        self.safe_point()
        population, learning = self.population, self.learning
        if learning.gamma > 0 and self.replay.size:
            held = self.replay.sample(slice(None, self.replay.size))
            transitions, penalty = (held.after, held.next, held.next_best), held.next_penalty
            del held  # its other half would take memory until the end of the training
            better = improve(population.cash_value, *transitions, learning.gamma, learning.policy_iterations, penalty)
            population.stand_on(population.ridge, better)
        self.safe_point()
        learned = self._train_networks() if population.networks is not None else {}
        self.champion = self.tested_champion()
        return learned

    def _train_networks(self) -> dict[str, float]:
        """Take the gradient steps of a generation, once the buffer is ready; random numbers are drawn beforehand."""
        population, learning, draws = self.population, self.learning, self.generators["batches"]
        assert population.networks is not None
        if not self.replay.is_ready:
            logger.info("%s", self.replay)
            return {}
        rows = learning.batch_size * learning.gradient_accumulation
        population.networks.calibration.fill_(self.replay.calibration())
        orders = self.days.relative.draw(learning.gradient_steps, rows, draws)
        replayed = torch.randint(self.replay.size, (learning.gradient_steps, learning.batch_size), generator=draws)
        replayed, learners, losses = replayed.to(orders.device), population.learners(), list[Tensor]()
        for now in progress(range(learning.gradient_steps), "train", "update"):
            self.safe_point()
            taken = self.updating.take(learners, self.days.relative.at, orders[now], replayed[now])
            losses.append(torch.stack([taken[name] for name in LOSSES]))
            population.updates += 1
        return population.note_losses(dict(zip(LOSSES, torch.stack(losses, dim=1), strict=True)))

    def tested_champion(self) -> DDPGAgent:
        """Return the committee of the elites, tested by what it thinks of training days that it did not learn from.

        It bets the share of the capital that its evidence is worth, and holds the market with the rest.
        """
        population, days, elites = self.population, self.days, self.population.elites
        champion, ridge = population.committee(elites), population.ridge.rows(elites)
        percent = champion.traders.target_percent.cpu()
        target = int((torch.tensor(TARGET_PERCENTS) - percent).abs().argmin())
        if population.networks is None:
            test = SkillTest(days, ridge.by_fold, target)
            days.forecasts(ridge.mean(), percent, most=1, seen=test)
        else:
            test = SkillTest(days, ridge.by_fold, target, elites)
            parts = population.networks.targets, self.eval_env.account.ranked, test
            self.forecasts = days.forecasts(population.ridge, target_percents(population.genes), *parts)
            champion.members = population.members(torch.tensor(elites), self.forecasts[1].rows(elites))
        evidence = champion.evidence = test.evidence(population.trials)
        shares = {"weigh": evidence.trust, "report": 1.0, "require": float(evidence.is_significant)}
        return champion.betting(shares[self.evaluation.evidence])

    @property
    def generation(self) -> int:
        """Generations so far."""
        return self.log.generation

    @property
    def best_fitness(self) -> float:
        """Fitness of the best agent; NaN before the first evaluation."""
        return float(self.population.fitness[self.population.elites[0]])

    @property
    def device(self) -> torch.device:
        """Device of accounts and networks."""
        return self.eval_env.account.device

    @property
    def best_agent(self) -> DDPGAgent:
        """A clone of the fittest agent of the last evaluation, with the champion's evidence and share of the orders."""
        best = self.population.best_agent
        best.evidence = self.champion.evidence
        return best.betting(self.champion.trust.orders)

    def run_episode(
        self, agent: DDPGAgent, env: TradingEnvironment, start_idx: Days, end_idx: Days, trading_end_idx: Days
    ) -> dict[str, Any]:
        """Play an agent, as deployed, on one window or on many of equal length as lanes; return the summary."""
        env.reset(start_idx=start_idx, end_idx=end_idx, trading_end_idx=trading_end_idx, observe=False)
        starts, lengths = torch.as_tensor(start_idx), (env.account.steps, env.account.trading_steps)
        played, later = slice(int(starts.min()), int(starts.max()) + lengths[0]), self.days.later
        is_later = later.days.start <= played.start and played.stop <= later.days.stop
        forecasts = agent.forecasts(self.market, later) if is_later else agent.forecasts(self.market, days=played)
        parts = agent.traders, forecasts, agent.cash_value, starts.reshape(-1)
        roll_out(env, *parts, label="validate", policy=agent.policy, lengths=lengths)
        summary = env.get_episode_summary()
        return summary if starts.dim() else {name: value.item() for name, value in summary.items()}

    def validate_best_agent(self) -> dict[str, float]:
        """Play the champion and its closed form on the validation windows; nothing is selected by the result."""
        rules, span = self.val_env.rules, self.market.splits.validation
        windows = windows_from(spaced_windows(span, rules.episode_steps, self.evaluation.validation_windows), rules)
        agents = {"champion": self.champion}
        if self.champion.networks is not None and not self.champion.holds_market:
            agents["closed_form"] = self.champion.closed_form()
        profits = dict[str, float]()
        for name, agent in agents.items():
            self.safe_point()
            summary = self.run_episode(agent=agent, env=self.val_env, **windows)
            profits[name] = float(torch.from_numpy(summary["profit_percent"]).mean())
        return profits

    def end_training(self) -> Float32Array:
        """Free what only further generations need, such as inputs of the training days; return the results of their
        orders, see `Samples`."""
        results = self.days.samples.results
        del self.days, self.rollouts, self.updating
        return results

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, as nested dicts of tensors and JSON values.

        Ridge forecasts follow from genes and market; the champion's are stored so that it runs without refitting.
        """
        return {
            "population": self.population.state_dict(),
            "cash_value": self.population.cash_value.state_dict(),
            "champion": self.champion.state_dict(),
            "best_agent": self.best_agent.state_dict(),
            "replay": self.replay.state_dict(),
            "progress": {
                "generation": self.log.generation,
                "device": str(self.device),
                "seconds": list(self.log.seconds),
            },
            "random": {
                "named": {name: generator.get_state() for name, generator in self.generators.items()},
                "global": random_state(),
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        progress, device = state["progress"], self.device
        self.log.generation, self.forecasts = progress["generation"], None
        self.log.seconds = deque(progress["seconds"], maxlen=HISTORY)
        self.population.load_state_dict(state["population"])
        self.stand_on(CashValue.from_state(state["cash_value"], self.eval_env.rules, device))
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
    env = TradingEnvironment.on(market, config.env, device)
    log = GenerationLog(config.generations, device, profiler, config.census_every)
    parts = config.learning, config.evolution, config.evaluation
    return ERLTrainer(market, env, *parts, seed=config.seed, log=log, safe_point=safe_point)

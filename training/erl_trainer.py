"""The generation loop: evaluate, train by gradient, evolve, validate, checkpoint."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from data.market import Market, MarketTensors
from data.splits import random_windows, spaced_windows
from environment.trading_env import VectorTradingEnvironment, investable_bars
from models.ddpg_agent import DDPGAgent
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training import evolution
from training.ddpg import OrderRules, UpdateStats, mean_stats
from training.distillation import Lesson, prepare_lessons, teach
from training.hindsight import look_back
from training.learner import Learner
from training.rollout import Exploration, Recorder, Rollout, roll_out
from training.sensitivity import actor_sensitivity
from training.trials import trial_record
from utils.config.trader import Config, LearningConfig
from utils.errors import NonFiniteError
from utils.memory.profiler import get_profiler
from utils.runs.seeding import named_generator, random_state, set_random_state

logger = logging.getLogger(__name__)
HISTORY = 1000
_COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
PHASES = ("evaluate", "train", "evolve", "validate", "checkpoint")


class ERLTrainer:
    """Owns everything that lives as long as the run: two environments, the population, the champion, the replay."""

    def __init__(
        self, config: Config, market: Market, device: torch.device, safe_point: Callable[[], None] = lambda: None
    ) -> None:
        """Build everything; `safe_point` is called between any two steps of work and may raise to stop."""
        self.safe_point = safe_point
        self.config, self.market, self.device = config, market, device
        rules = config.env
        self.tensors = MarketTensors.of(market, device)
        bars = investable_bars(market.data_array, market.investable_columns, device)
        self.eval_env = VectorTradingEnvironment(bars, rules)
        self.val_env = VectorTradingEnvironment(bars, rules)
        context_days = config.split.context_window_days
        self.population = Population(
            config.evolution.population_size, config.network, config.learning, context_days, device
        )
        self.champion = DDPGAgent(config.network, context_days, device=device)
        portfolio = self.eval_env.portfolio
        train = market.splits.train
        self.replay = ReplayBuffer(
            config.replay.capacity,
            first_day=train.first,
            last_day=train.last - 1,
            slots=portfolio.slots,
            orders_per_day=portfolio.orders_per_day,
            device=device,
        )
        order_rules = OrderRules.of(rules, portfolio.orders_per_day, config.learning.selection_temperature)
        hindsight = look_back(bars, rules, train.first, train.last) if looks_back(config) else None
        self.learner = Learner(self.population, self.replay, self.tensors, config.learning, order_rules, hindsight)
        self.generators = {
            name: named_generator(config.seed, name, "cpu" if name in ("windows", "evolution") else device)
            for name in ("windows", "evolution", "exploration", "replay")
        }
        self.validation_starts = spaced_windows(
            market.splits.validation, rules.episode_steps, config.evaluation.validation_windows
        )
        self.generation = 0
        self.champion_score = float("-inf")
        self.champion_generation = 0
        self.elites: list[int] = []
        self.seconds: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._track_memory()

    def _track_memory(self) -> None:
        profiler = get_profiler()
        for env in (self.eval_env, self.val_env):
            profiler.track("environments", env)
        profiler.track("replay_buffers", self.replay)
        profiler.track("agents", self.champion)
        profiler.register_counter("agents", self._count_agents)

    def _count_agents(self) -> int:
        return self.population.size

    def run_generation(self) -> dict[str, Any]:
        """One generation; returns its record for the metrics. The state is then ready to be saved."""
        self.generation += 1
        self.seconds.append({})
        with self._phase("evaluate"):
            rollout = self.evaluate()
        self._heed_unsound("the actions or results", rollout.fitness.isfinite())
        with self._phase("train"):
            learning = self.train()
        with self._phase("evolve"):
            self.evolve(rollout.fitness)
        with self._phase("validate"):
            validation = self.validate()
        return self._record(rollout, learning, validation)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[-1][name] = time.perf_counter() - started
        get_profiler().log_memory(name, census=name == "evolve" and self._takes_census())

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add a phase that ran outside the trainer to the times of this generation."""
        self.seconds[-1][phase] = seconds

    def _takes_census(self) -> bool:
        """Counting all objects takes about a second; the first generations show what is built up once."""
        every = self.config.census_every
        return every > 0 and (self.generation <= 2 or self.generation % every == 0)

    def evaluate(self) -> Rollout:
        """Play all agents on the generation's windows, with and without noise; all of it fills the replay buffer."""
        config = self.config
        starts = random_windows(
            self.market.splits.train,
            config.env.episode_steps,
            config.evaluation.fitness_windows,
            self.generators["windows"],
        )
        recorder = Recorder()
        rollout = roll_out(
            self.eval_env,
            self.population.networks,
            self.tensors,
            starts.to(self.device),
            exploration=Exploration(
                exploration_noise(config.learning, self.generation),
                config.learning.random_order_probability,
                config.evaluation.exploration_lanes,
                self.generators["exploration"],
            ),
            recorder=recorder,
            safe_point=self.safe_point,
        )
        self.replay.add(recorder.transitions(self.eval_env, config.learning.credit))
        return rollout

    def train(self) -> dict[str, float]:
        """Gradient steps of all agents on the shared buffer, once it holds enough; returns mean losses and norms."""
        if self.replay.size < max(1, self.config.replay.training_starts):
            return {}
        self.population.scale_learning_rates(learning_rate_share(self.config.learning, self.generation))
        steps = tqdm(range(self.config.learning.gradient_steps), desc="train", unit="step", leave=False, delay=1.0)
        return mean_stats([self._update() for _ in steps])

    def _update(self) -> UpdateStats:
        self.safe_point()
        stats = self.learner.update(self.generators["replay"])
        self._heed_unsound("an update", stats.is_sound)
        return stats

    def _heed_unsound(self, what: str, is_sound: Tensor) -> None:
        """Stop the run, if the settings say so, where something of an agent, (A,), was not finite."""
        if self.config.learning.non_finite == "stop" and not bool(is_sound.all()):
            raise NonFiniteError(
                f"expected finite numbers, got {what} of {int((~is_sound).sum())} of {len(is_sound)} agents in "
                f"generation {self.generation} that are not; lower the learning rates or mend the data, or skip what "
                "is not finite with --resume and --learning.non-finite skip"
            )

    @torch.no_grad()
    def evolve(self, fitness: Tensor) -> None:
        """Replace the population by its elites, offspring, mutants and survivors, in place."""
        config, generator = self.config.evolution, self.generators["evolution"]
        succession = evolution.plan_succession(fitness.cpu(), config, generator)
        self.elites = evolution.elite_rows(fitness.cpu(), succession)
        sensitivity = self._sensitivity(succession) if config.mutation == "proximal" else None
        self.safe_point()
        lessons = self._lessons(succession) if config.crossover == "distill" else []
        stacks = self.population.stacks()
        if config.crossover == "average":
            heirs = evolution.cross_average(stacks, succession, generator)
        elif config.crossover == "head":
            heirs = evolution.cross_heads(stacks, succession)
        else:
            heirs = evolution.inherit(stacks, succession)
        heirs = evolution.mutate(heirs, succession.is_mutant, config.mutation_strength, generator, sensitivity)
        self.population.write(heirs)
        self.safe_point()
        if lessons:
            teach(self.population, succession, lessons, self.config.learning)

    def _sensitivity(self, succession: evolution.Succession) -> dict[str, Tensor]:
        """Sensitivities of the next generation's actors, which are those of their parents."""
        with torch.enable_grad():
            own = actor_sensitivity(
                self.population, self.replay, self.tensors, self.config.learning, self.generators["replay"]
            )
        return {name: stack[succession.parents.to(stack.device)] for name, stack in own.items()}

    def _lessons(self, succession: evolution.Succession) -> list[Lesson]:
        steps = self.config.evolution.distillation_steps
        return prepare_lessons(
            self.population, succession, self.replay, self.tensors, self.learner.rules, steps, self.generators["replay"]
        )

    def validate(self) -> dict[str, Any]:
        """Play all agents on the validation windows; the best one ever, by money, becomes the champion."""
        starts = self.validation_starts.to(self.device)
        rollout = roll_out(
            self.val_env, self.population.networks, self.tensors, starts, safe_point=self.safe_point, label="validate"
        )
        profit = rollout.profit_percent
        self._heed_unsound("the actions on validation windows", profit.isfinite())
        score, best = torch.where(profit.isfinite(), profit, -torch.inf).max(0)
        if float(score) > self.champion_score:
            self.champion_score, self.champion_generation = float(score), self.generation
            self.population.copy_agent(int(best), self.champion)
        return {
            "best": float(score),
            "best_agent": int(best),
            "mean": float(profit.nanmean()),
            "unsound_agents": int((~profit.isfinite()).sum()),
            "champion": self.champion_score,
            "champion_generation": self.champion_generation,
            "trials": self._trials(rollout),
        }

    def _trials(self, rollout: Rollout) -> dict[str, Any]:
        """What each agent earned, for those who must know among how many results the champion was chosen."""
        is_sound = rollout.profit_percent.isfinite()[:, None]
        equity = torch.where(is_sound, rollout.equity[..., 0], torch.nan)
        return trial_record(equity.cpu().numpy(), self.validation_starts.numpy(), self.config.env.initial_capital)

    def _record(self, rollout: Rollout, learning: dict[str, float], validation: dict[str, Any]) -> dict[str, Any]:
        """The generation in plain numbers; only `seconds` and `memory` may differ between equal runs."""
        fitness, summary = rollout.fitness, rollout.summary
        counts = {name: int(rollout.noise_free(getattr(summary, name)).sum()) for name in _COUNTS}
        money = {name: float(rollout.noise_free(getattr(summary, name)).sum()) for name in ("penalties", "costs")}
        snapshot = get_profiler().snapshots[-1]
        return {
            "generation": self.generation,
            "generations": self.config.generations,
            "replay": {
                "size": self.replay.size,
                "capacity": self.replay.capacity,
                "training_starts": self.config.replay.training_starts,
            },
            "fitness": {
                **_spread(fitness[fitness.isfinite()]),
                "above_zero": int((fitness > 0).sum()),
                "agents": self.population.size,
                "unsound_agents": int((~fitness.isfinite()).sum()),
            },
            "profit_percent": float(rollout.profit_percent.nanmean()),
            "trading": {
                **counts,
                **money,
                "win_rate": counts["wins"] / counts["trades"] if counts["trades"] else 0.0,
            },
            "validation": validation,
            "learning": learning or None,
            "exploration_noise": exploration_noise(self.config.learning, self.generation),
            "seconds": self._timing(),
            "memory": {
                "rss_mb": snapshot.rss_mb,
                "uss_mb": snapshot.uss_mb,
                "gpu_allocated_mb": snapshot.gpu_allocated_mb,
            },
        }

    def _timing(self) -> dict[str, float]:
        """Seconds of this generation by phase, and what they say about the rest of the run.

        Its checkpoint is not written yet; the averages hold those of the generations before.
        """
        totals = [sum(phases.values()) for phases in self.seconds]
        average = sum(totals) / len(totals)
        left = average * (self.config.generations - self.generation)
        return {**self.seconds[-1], "total": totals[-1], "average": average, "left": left}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, as nested dicts of tensors and JSON values."""
        return {
            "population": self.population.state_dict(),
            "champion": {"networks": self.champion.networks.state_dict()},
            "replay": self.replay.state_dict(),
            "progress": {
                "generation": self.generation,
                "champion_score": self.champion_score,
                "champion_generation": self.champion_generation,
                "elites": self.elites,
                "seconds": list(self.seconds),
            },
            "random": {
                "named": {name: generator.get_state() for name, generator in self.generators.items()},
                "global": random_state(),
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, into the objects that are there."""
        self.population.load_state_dict(state["population"])
        self.champion.networks.load_state_dict(state["champion"]["networks"])
        self.champion.forget_encodings()
        self.replay.load_state_dict(state["replay"])
        progress = state["progress"]
        self.generation = progress["generation"]
        self.champion_score = progress["champion_score"]
        self.champion_generation = progress["champion_generation"]
        self.elites = list(progress.get("elites", []))
        self.seconds = deque(progress["seconds"], maxlen=HISTORY)
        for name, generator in self.generators.items():
            generator.set_state(state["random"]["named"][name])
        set_random_state(state["random"]["global"])


def _spread(fitness: Tensor) -> dict[str, float | None]:
    """Mean, max, min and standard deviation; None where no agent has a fitness."""
    if not len(fitness):
        return dict.fromkeys(("mean", "max", "min", "std"))
    return {
        "mean": float(fitness.mean()),
        "max": float(fitness.max()),
        "min": float(fitness.min()),
        "std": float(fitness.std(correction=0)),
    }


def looks_back(config: Config) -> bool:
    """Whether critics learn from orders that were not given: only a structured one tells what a trade itself earns,
    and only if rewards are credited by trade is that the same as its reward.
    """
    is_apart = config.network.critic == "structured" and config.learning.credit == "entry"
    return is_apart and config.learning.hindsight_orders > 0


def exploration_noise(config: LearningConfig, generation: int) -> float:
    """Standard deviation of the exploration noise at a generation, counted from 1: linear, then constant."""
    return _falling(config.noise_initial, config.noise_final, generation, config.noise_decay_generations)


def learning_rate_share(config: LearningConfig, generation: int) -> float:
    """Share of the learning rates at a generation, counted from 1: linear, then constant."""
    return _falling(1.0, config.learning_rate_final, generation, config.learning_rate_decay_generations)


def _falling(initial: float, final: float, generation: int, generations: int) -> float:
    return initial + min(1.0, (generation - 1) / generations) * (final - initial)

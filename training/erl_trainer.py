"""The generation loop: evaluate, train by gradient, evolve, validate (ERL; Khadka and Tumer 2018)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from data.features import OPEN
from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from training.ddpg import mean_stats
from training.distillation import actor_sensitivity, distill, distillation_batches
from training.evaluation.baselines import held_equity
from training.evolution import cross_average, cross_heads, elite_rows, inherit, mutate, plan_selection
from training.generation_log import HISTORY, GenerationLog, validation_record
from training.learner import Learner
from training.rollout import Exploration, Recorder, Rollout, roll_out
from utils.config.trader import EvaluationConfig, EvolutionConfig, LearningConfig
from utils.errors import NonFiniteError
from utils.runs.seeding import named_generator, random_state, set_random_state

PHASES = ("evaluate", "train", "evolve", "validate", "checkpoint")
"""Of a generation, in their order; its checkpoint is written by who drives the trainer."""


class ERLTrainer:
    """Owns all that lives as long as the run: environments, the learner with population and replay, the champion."""

    def __init__(
        self,
        market: Market,
        env: Portfolio,
        learner: Learner,
        evolution: EvolutionConfig,
        evaluation: EvaluationConfig,
        *,
        training_starts: int,
        seed: int,
        log: GenerationLog,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the parts; `safe_point` is called between any two steps of work and may raise to stop.

        Args:
            env: agents are evaluated in it, and validated in one like it.
            training_starts: transitions that the replay must hold before gradient steps begin.
        """
        self.market, self.tensors = market, learner.market
        self.eval_env, self.val_env = env, Portfolio(env.bars, env.rules)
        self.learner, self.population, self.replay = learner, learner.population, learner.replay
        self.device = self.population.device
        context_days = self.population.networks.context_days
        self.champion = DDPGAgent(self.population.network_config, context_days, device=self.device)
        self.learning, self.evolution, self.evaluation = learner.config, evolution, evaluation
        self.training_starts, self.seed = training_starts, seed
        self.log, self.safe_point = log, safe_point
        self.generators = {
            name: named_generator(seed, name, "cpu" if name in ("windows", "evolution") else self.device)
            for name in ("windows", "evolution", "exploration", "replay")
        }
        self.validation_starts = spaced_windows(
            market.splits.validation, env.rules.episode_steps, evaluation.validation_windows
        )
        open_, steps = market.data_array[:, market.investable_columns, OPEN], env.rules.episode_steps
        self.equal_weight = np.stack(
            [held_equity(market.close, open_, start, steps, env.rules) for start in self.validation_starts.tolist()],
            axis=1,
        )
        self.generation = 0
        self.champion_score = float("-inf")
        self.champion_generation = 0
        self.elites: list[int] = []
        self.founders = list(range(self.population.size))
        """For each agent the one of the first generation whose parameters it descends from, mates left out."""

    def run(self, generations: int) -> Iterator[dict[str, Any]]:
        """Run up to so many generations; yield each one's record once its state is ready to be saved."""
        while self.generation < generations:
            yield self.run_generation()

    def run_generation(self) -> dict[str, Any]:
        """Run one generation and return its record for the metrics."""
        self.generation += 1
        self.log.begin(self.generation)
        with self.log.phase("evaluate"):
            rollout = self.evaluate()
        self._require_finite("the actions or results", rollout.fitness.isfinite())
        with self.log.phase("train"):
            learning = self.train()
        with self.log.phase("evolve"):
            self.evolve(rollout.fitness)
        with self.log.phase("validate"):
            validation = self.validate()
        noise = exploration_noise(self.learning, self.generation)
        return self.log.record(rollout, learning, validation, self.replay, self.training_starts, noise)

    def evaluate(self) -> Rollout:
        """Play all agents on the generation's windows, with and without noise; all of it fills the replay buffer."""
        config, steps = self.evaluation, self.eval_env.rules.episode_steps
        starts = random_windows(self.market.splits.train, steps, config.fitness_windows, self.generators["windows"])
        recorder = Recorder()
        rollout = roll_out(
            self.eval_env,
            self.population.networks,
            self.tensors,
            starts.to(self.device),
            exploration=Exploration(
                exploration_noise(self.learning, self.generation),
                self.learning.random_order_probability,
                config.exploration_lanes,
                self.generators["exploration"],
            ),
            recorder=recorder,
            safe_point=self.safe_point,
        )
        self.replay.add(recorder.transitions(self.eval_env, self.learning.credit))
        return rollout

    def train(self) -> dict[str, float]:
        """Train all agents on the shared buffer, once it holds enough; return mean losses and norms."""
        if self.replay.size < max(1, self.training_starts):
            return {}
        self.population.scale_learning_rates(learning_rate_share(self.learning, self.generation))
        updates = []
        for _ in tqdm(
            range(self.learning.gradient_steps), desc="train", unit="step", leave=False, disable=None, delay=1.0
        ):
            self.safe_point()
            updates.append(self.learner.update(self.generators["replay"]))
            self._require_finite("an update", updates[-1].is_finite)
        return mean_stats(updates)

    @torch.no_grad()
    def evolve(self, fitness: Tensor) -> None:
        """Replace the population by its elites, offspring, mutants and survivors, in place."""
        config, learning, generator = self.evolution, self.learning, self.generators["evolution"]
        population, replay, draws = self.population, self.replay, self.generators["replay"]
        selection = plan_selection(fitness.cpu(), config, generator)
        self.elites = elite_rows(fitness.cpu(), selection)
        self.founders = [self.founders[parent] for parent in selection.parents.tolist()]
        sensitivity = None
        if config.mutation == "proximal":
            own = actor_sensitivity(population, replay, self.tensors, learning.batch_size, draws)
            sensitivity = inherit(own, selection)
        self.safe_point()
        batches = []
        if config.crossover == "distill":
            limits, temperature = self.learner.limits, learning.selection_temperature
            steps = config.distillation_steps
            batches = distillation_batches(
                population, selection, replay, self.tensors, limits, temperature, steps, draws
            )
        stacks = population.stacks()
        if config.crossover == "average":
            heirs = cross_average(stacks, selection, generator)
        elif config.crossover == "head":
            heirs = cross_heads(stacks, selection)
        else:
            heirs = inherit(stacks, selection)
        population.write(mutate(heirs, selection.is_mutant, config.mutation_strength, generator, sensitivity))
        self.safe_point()
        if batches:
            distill(population, selection, batches, learning.actor_learning_rate)

    def validate(self) -> dict[str, Any]:
        """Play all agents on the validation windows; the best one ever, by money, becomes the champion."""
        starts = self.validation_starts.to(self.device)
        rollout = roll_out(
            self.val_env, self.population.networks, self.tensors, starts, safe_point=self.safe_point, label="validate"
        )
        self._require_finite("the actions on validation windows", rollout.profit_percent.isfinite())
        score, best = rollout.most_profitable()
        if score > self.champion_score:
            self.champion_score, self.champion_generation = score, self.generation
            self.population.copy_agent(best, self.champion)
        return validation_record(
            rollout,
            self.equal_weight,
            self.validation_starts,
            self.founders,
            self.champion_score,
            self.champion_generation,
        )

    @property
    def seconds(self) -> Sequence[dict[str, float]]:
        """Seconds of the last generations by phase."""
        return self.log.seconds

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add a phase that ran outside the trainer to the times of this generation."""
        self.log.seconds[-1][phase] = seconds

    def _require_finite(self, name: str, is_finite: Tensor) -> None:
        """Stop the run, if the settings say so, where something of an agent, (A,), was not finite."""
        if self.learning.non_finite == "stop" and not bool(is_finite.all()):
            raise NonFiniteError(
                f"expected finite numbers, got {name} of {int((~is_finite).sum())} of {len(is_finite)} agents in "
                f"generation {self.generation} that are not; lower the learning rates or mend the data, or skip what "
                "is not finite with --resume and --learning.non-finite skip"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, as nested dicts of tensors and JSON values."""
        return {
            "population": self.population.state_dict(),
            "champion": {"networks": self.champion.networks.state_dict()},
            "replay": self.replay.state_dict(),
            "progress": {
                "generation": self.generation,
                "champion_score": self.champion_score,
                "champion_generation": self.champion_generation,
                "elites": self.elites,
                "founders": self.founders,
                "seconds": list(self.log.seconds),
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
        self.founders = list(progress.get("founders", self.founders))
        self.log.seconds = deque(progress["seconds"], maxlen=HISTORY)
        for name, generator in self.generators.items():
            generator.set_state(state["random"]["named"][name])
        set_random_state(state["random"]["global"])


def exploration_noise(config: LearningConfig, generation: int) -> float:
    """Return the exploration noise at a generation, counted from 1: linear, then constant."""
    return _falling(config.noise_initial, config.noise_final, generation, config.noise_decay_generations)


def learning_rate_share(config: LearningConfig, generation: int) -> float:
    """Return the share of the learning rates at a generation, counted from 1: linear, then constant."""
    return _falling(1.0, config.learning_rate_final, generation, config.learning_rate_decay_generations)


def _falling(initial: float, final: float, generation: int, generations: int) -> float:
    return initial + min(1.0, (generation - 1) / generations) * (final - initial)

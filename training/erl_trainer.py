"""The generation loop: evaluate, evolve, train, validate (ERL; Khadka and Tumer 2018), with critics in closed form."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.portfolio import Portfolio
from models import genome
from models.cash_value import CashValue, improve
from models.ddpg_agent import DDPGAgent
from models.replay_buffer import cash_transitions, replay_buffer
from models.trader import Traders
from training.evolution import elite_count, next_generation, ranked
from training.forecasts.ridge import TrainingDays, traders_of
from training.generation_log import HISTORY, GenerationLog
from training.rollout import roll_out
from training.rollout_graph import RolloutGraph
from training.shards.shard import Choice, LocalShards, Played, Shard, Shards, Task
from utils.config.trader import EvaluationConfig, EvolutionConfig, LearningConfig
from utils.runs.devices import note_other_device
from utils.runs.seeding import named_generator, random_state, set_random_state
from utils.spaces import TARGET_PERCENTS

PHASES = ("fit", "evaluate", "evolve", "train", "validate", "checkpoint")
"""Of a generation, in their order; its checkpoint is written by who drives the trainer."""


class ERLTrainer:
    """Owns all that lives as long as the run: environments, genes and forecasts, the replay, the value of cash."""

    def __init__(
        self,
        market: Market,
        env: Portfolio,
        learning: LearningConfig,
        evolution: EvolutionConfig,
        evaluation: EvaluationConfig,
        *,
        seed: int,
        log: GenerationLog,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the parts; `safe_point` is called between any two steps of work and may raise to stop.

        Args:
            env: agents are evaluated in it, and the champion validated in one like it.
        """
        self.market, self.device = market, env.device
        self.eval_env, self.val_env = env, Portfolio(env.bars, env.rules)
        self.val_graph = RolloutGraph()
        self.learning, self.evolution, self.evaluation = learning, evolution, evaluation
        self.log, self.safe_point = log, safe_point
        self.days = TrainingDays.of(market, env)
        self.shards: Shards = LocalShards([Shard(self.days, env, market.splits.train)], safe_point)
        """Where agents are played."""
        self.generators = {name: named_generator(seed, name) for name in ("windows", "evolution")}
        self.genes = genome.found(evolution.population_size, self.generators["evolution"])
        """(P, genes) of the agents."""
        self.cash_value = CashValue.zero(env.rules, self.device)
        self.replay = replay_buffer(learning.replay_capacity, env.orders_per_day, self.device)
        self.elites = list(range(elite_count(evolution)))
        """Rows of the fittest agents of the last evaluation, the fittest first."""
        self.founders = list(range(evolution.population_size))
        """For each agent the one of the first generation that its first parents descend from."""
        steps = env.rules.episode_steps
        self.validation_starts = spaced_windows(market.splits.validation, steps, evaluation.validation_windows)
        self.generation = 0
        self.forecasts = self.days.fit(self.genes)
        """Of the agents that were evaluated last; rows of elites hold for the next generation too."""
        self.champion = self.ensemble(self.elites)
        """The elites of the last generation in one agent."""
        self.champion_score = float("nan")
        """Its mean profit on the validation windows, percent of the initial capital."""

    def begin_with(self, genes: Tensor, elites: Sequence[int], weights: Tensor, opportunity_knots: Tensor) -> None:
        """Take the place of the founders by (P, genes) of another run, and that of no value of cash by its value."""
        self.genes, self.elites = genes, list(elites)
        self.forecasts = self.days.fit(genes)
        self.cash_value = self.cash_value.with_values(weights.to(self.device), opportunity_knots.to(self.device))
        self.champion = self.ensemble(self.elites)

    def run(self, generations: int) -> Iterator[dict[str, Any]]:
        """Run up to so many generations; yield each one's record once its state is ready to be saved."""
        while self.generation < generations:
            yield self.run_generation()

    def run_generation(self) -> dict[str, Any]:
        """Run one generation and return its record for the metrics."""
        self.generation += 1
        self.log.begin(self.generation)
        with self.log.phase("fit"):
            self.forecasts = self.days.fit(self.genes)
        with self.log.phase("evaluate"):
            played = self.evaluate()
        learning = self.learning_record(played)
        with self.log.phase("evolve"):
            self.evolve(played.fitness)
        with self.log.phase("train"):
            self.train()
        learning |= {f"luck_in_{name}": chance for name, chance in vars(self.champion.evidence).items()}
        with self.log.phase("validate"):
            validation = self.validate()
        return self.log.record(played, learning, validation, self.replay)

    def evaluate(self) -> Played:
        """Play all agents on windows of training days by what they expect there out of fold; fill the replay."""
        train, steps = self.market.splits.train, self.eval_env.rules.episode_steps
        fitness, exploration = self.evaluation.fitness_windows, self.evaluation.exploration_windows
        draws = self.generators["windows"]
        starts = torch.cat([random_windows(train, steps, count, draws) for count in (fitness, exploration) if count])
        drawn = torch.rand(len(self.genes), exploration, generator=draws, dtype=torch.float64)
        task = Task(
            self.genes,
            self.forecasts.weights,
            self.forecasts.by_fold,
            self.cash_value.weights,
            self.cash_value.opportunity_knots,
            starts,
            drawn,
        )
        played, lived = self.shards.evaluate(task, self.choose)
        if lived.transitions:
            self.replay.add(lived.transitions)
        return played

    def choose(self, fitness: Tensor) -> Choice:
        """Choose whose transitions the replay gets: what is worth waiting for is what the best expect."""
        windows = self.evaluation.fitness_windows + self.evaluation.exploration_windows
        elites, days = ranked(fitness)[: elite_count(self.evolution)], self.eval_env.rules.trading_days - 1
        return Choice.of(elites, days, windows, self.replay.capacity)

    def evolve(self, fitness: Tensor) -> None:
        """Replace all agents but the elites by mutated children of the fittest."""
        self.elites = ranked(fitness)[: elite_count(self.evolution)].tolist()
        self.genes, parents = next_generation(self.genes, fitness, self.evolution, self.generators["evolution"])
        self.founders = [self.founders[parent] for parent in parents.tolist()]

    def train(self) -> None:
        """Fit the value of cash to what accounts lived through, and the champion's critic to what orders earned."""
        self.safe_point()
        if self.learning.gamma > 0 and self.replay.size:
            self.cash_value = improve(
                self.cash_value, cash_transitions(self.replay), self.learning.gamma, self.learning.policy_iterations
            )
        self.safe_point()
        self.champion = self.ensemble(self.elites)

    def ensemble(self, agents: Sequence[int]) -> DDPGAgent:
        """Return the mean of some agents: of critics that are linear it is an ensemble.

        Where days out of fold show no evidence for what it expects, it is one that holds the market.
        """
        rows, rules = list(agents), self.eval_env.rules
        traders = traders_of(self.genes[rows], self.forecasts.weights[rows], "cpu").mean()
        target = int((torch.tensor(TARGET_PERCENTS) - traders.target_percent).abs().argmin())
        evidence = self.days.evidence(self.forecasts.by_fold[rows].mean(0), target)
        if not evidence.is_there:
            traders = Traders.of_market(rules, traders.weights.shape[1])
        return DDPGAgent(self.days.inputs, traders.to(self.device), self.cash_value, rules, evidence)

    def validate(self) -> dict[str, float]:
        """Play the champion on the validation windows; nothing is chosen by the result."""
        rollout = roll_out(
            self.val_env,
            self.champion.traders,
            self.champion.outlook(self.market, self.days.later),
            self.cash_value,
            self.validation_starts,
            safe_point=self.safe_point,
            label="validate",
            graph=self.val_graph,
        )
        self.champion_score = float(rollout.profit_percent)
        return {"champion": self.champion_score}

    def learning_record(self, played: Played) -> dict[str, float]:
        """Return how well critics and value foretell what they have not seen, and how varied the agents still are."""
        best = ranked(played.fitness)[: elite_count(self.evolution)]
        return {
            "explained": float(self.forecasts.explained.numpy().mean()),
            "explained_best": float(self.forecasts.explained.max()),
            "initial_value": float(played.initial_value[best].mean()),
            "elite_profit_percent": float(played.profit_percent[best].mean()),
            "founders": len(set(self.founders)),
        }

    @property
    def seconds(self) -> Sequence[dict[str, float]]:
        """Seconds of the last generations by phase."""
        return self.log.seconds

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add a phase that ran outside the trainer to the times of this generation."""
        self.log.seconds[-1][phase] = seconds

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, as nested dicts of tensors and JSON values.

        RidgeForecasts follow from genes and market; the champion's is kept for who only plays it.
        """
        return {
            "population": {"genes": self.genes},
            "champion": self.champion.state_dict(),
            "replay": self.replay.state_dict(),
            "progress": {
                "generation": self.generation,
                "device": str(self.device),
                "champion_score": self.champion_score,
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
        """Restore what `state_dict` gave."""
        progress = state["progress"]
        note_other_device(progress.get("device"), self.device)
        self.generation = progress["generation"]
        self.champion_score = progress["champion_score"]
        self.elites, self.founders = list(progress["elites"]), list(progress["founders"])
        self.genes = state["population"]["genes"].cpu()
        self.champion = DDPGAgent.from_state(state["champion"], self.device)
        self.cash_value = self.champion.cash_value
        self.replay.load_state_dict(state["replay"])
        self.log.seconds = deque(progress["seconds"], maxlen=HISTORY)
        for name, generator in self.generators.items():
            generator.set_state(state["random"]["named"][name])
        set_random_state(state["random"]["global"])

"""The generation loop of ERL (Khadka and Tumer 2018): fit forecasts, evaluate, evolve, train, validate."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.trading_env import TradingEnvironment
from models import genome
from models.cash_value import CashValue, improve
from models.ddpg_agent import Committee, DDPGAgent
from models.genome import TARGET
from models.population import Population
from models.replay_buffer import ReplayBuffer
from models.trader import Forecasts, Traders
from training.cuda_graph import Tensors
from training.ddpg import learner
from training.evolution import elite_count, next_generation, ranked
from training.forecasts.known import KnownForecasts
from training.forecasts.ridge import TrainingDays, traders_of
from training.generation_log import HISTORY, GenerationLog
from training.rollout import roll_out
from training.rollout_graph import RolloutGraph
from training.rollout_worker import (
    PopulationResults,
    PopulationRollouts,
    RolloutInputs,
    RolloutWorker,
    network_tensors,
)
from training.updates import Updates
from utils.config.trader import EvaluationConfig, EvolutionConfig, LearningConfig
from utils.progress import progress
from utils.runs.devices import note_other_device
from utils.runs.seeding import named_generator, random_state, set_random_state
from utils.spaces import TARGET_PERCENTS

logger = logging.getLogger(__name__)
STREAMS = ("windows", "evolution", "networks", "sight", "noise", "batches")
"""Random streams by purpose, all drawn on the CPU."""
ORIGINS = ("founders", "elites", "children")
"""Origin of an agent: drawn for the first generation, kept from the one before, or bred from it."""
PHASES = ("fit", "evaluate", "evolve", "train", "validate", "checkpoint")
"""Of a generation, in their order; the caller of the trainer writes the checkpoint."""


class ERLTrainer:
    """Owns what lives as long as the run: environments, population, replay buffer and value of cash."""

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
        account = env.account
        self.market, self.device = market, account.device
        self.eval_env, self.val_env = env, env.twin()
        self.val_graph = RolloutGraph()
        self.learning, self.evolution, self.evaluation = learning, evolution, evaluation
        self.log, self.safe_point = log, safe_point
        self.days = TrainingDays.of(market, account)
        self.results = self.days.samples.results
        """Of all orders of the training days, see `Samples`."""
        self.worker = RolloutWorker(self.days, account, market.splits.train)
        self.rollouts = PopulationRollouts(partial(self.worker.play, safe_point=safe_point))
        self.generators = {name: named_generator(seed, name) for name in STREAMS}
        self.genes = genome.random_genes(evolution.population_size, self.generators["evolution"])
        """(P, genes) of the agents."""
        self.cash_value = CashValue.zero(env.rules, self.device)
        self.replay = ReplayBuffer(
            learning.replay_capacity, account.orders_per_day, learning.training_starts, self.device
        )
        self.elites = list(range(elite_count(evolution)))
        """Rows of the fittest agents of the last evaluation, the fittest first."""
        self.founders = list(range(evolution.population_size))
        """For each agent its ancestor in the first generation, by first parents."""
        steps = env.rules.episode_steps
        self.validation_starts = spaced_windows(market.splits.validation, steps, evaluation.validation_windows)
        self.generation = 0
        self.ridge = self.days.fit(self.genes)
        """Ridge regressions of the agents evaluated last; those of elites stay valid in the next generation."""
        self.population = Population.initialize(
            evolution.population_size,
            learning,
            self.days.inputs,
            env.rules,
            len(self.days.samples.folds),
            self.device,
            self.generators["networks"],
            learner=learner(learning.gamma, learning.tau),
        )
        self.examined = 0
        """Agents that were evaluated so far, also in runs that this one extends; elites count once."""
        self.updates = 0
        """Gradient steps of all agents so far."""
        networks = self.population.networks
        self.updating = None if networks is None else Updates(networks, self.replay, self.days.relative.at, learning)
        self.fittest = dict.fromkeys(ORIGINS, 0)
        """Number of generations by the origin of their fittest agent."""
        self.elite_forecasts: KnownForecasts | None = None
        """Those by which the champion was tested; they hold until the elites are trained again."""
        self.champion = self.deployed(self.committee(self.elites))
        """The elites of the last generation in one agent."""
        self.champion_score = float("nan")
        """Its mean profit on the validation windows, percent of the initial capital."""

    def begin_with(self, genes: Tensor, elites: Sequence[int], weights: Tensor, opportunity_knots: Tensor) -> None:
        """Start from the (P, genes), elites and value of cash of another run."""
        self.genes, self.elites, self.elite_forecasts = genes, list(elites), None
        self.ridge = self.days.fit(genes)
        self.cash_value = self.cash_value.with_values(weights.to(self.device), opportunity_knots.to(self.device))
        self.champion = self.deployed(self.committee(self.elites))

    def run(self, generations: int) -> Iterator[dict[str, Any]]:
        """Run up to so many generations; yield each record once the state may be saved."""
        while self.generation < generations:
            yield self.run_generation()

    def run_generation(self) -> dict[str, Any]:
        """Run one generation and return its record for the metrics."""
        self.generation += 1
        self.log.begin(self.generation)
        with self.log.phase("fit"):
            self.fit_forecasts()
        with self.log.phase("evaluate"):
            played = self.evaluate_population()
        learning = self.learning_record(played)
        with self.log.phase("evolve"):
            self.evolve_population(played.fitness)
        with self.log.phase("train"):
            learning |= self.train_population(played)
        learning |= {f"p_value_{name}": chance for name, chance in vars(self.champion.evidence).items()}
        with self.log.phase("validate"):
            validation = self.validate_best_agent()
        starts = None if self.population.networks is None else self.replay.training_starts
        return self.log.record(played, learning, validation, self.replay, starts)

    def fit_forecasts(self) -> None:
        """Fit the ridge forecasts of all agents to what orders earned on training days, by fold and on all days."""
        self.ridge = self.days.fit(self.genes)
        self.population.inform(self.traders, self.cash_value)

    @property
    def traders(self) -> Traders:
        """The closed-form parts of the agents."""
        return traders_of(self.genes, self.ridge.weights, self.device)

    def evaluate_population(self) -> PopulationResults:
        """Play all agents on windows of training days by out-of-fold forecasts; fill the replay buffer."""
        train, steps = self.market.splits.train, self.eval_env.rules.episode_steps
        fitness, exploration = self.evaluation.fitness_windows, self.evaluation.exploration_windows
        draws = self.generators["windows"]
        starts = torch.cat([random_windows(train, steps, count, draws) for count in (fitness, exploration) if count])
        drawn = torch.rand(len(self.genes), exploration, generator=draws, dtype=torch.float64)
        played, transitions = self.rollouts.evaluate(self.rollout_inputs(starts, drawn))
        if transitions:
            self.replay.add(transitions)
        if self.population.networks is not None:
            targets, deviation = self.genes[:, TARGET].long(), self.days.relative.deviation
            self.population.weigh(played.blend, self.ridge.weights, deviation, targets, played.gate)
        self.examined += len(self.genes) - (elite_count(self.evolution) if self.generation > 1 else 0)
        bred = "elites" if int(ranked(played.fitness)[0]) in self.elites else "children"
        self.fittest["founders" if self.generation == 1 else bred] += 1
        return played

    def rollout_inputs(self, starts: Tensor, drawn: Tensor) -> RolloutInputs:
        """Return what the agents need to play windows from these (W,) days, the last of which explore.

        Args:
            drawn: (P, E) uniform numbers that set the exploration thresholds on the last E windows.
        """
        networks, noise = self.population.networks, torch.zeros(*drawn.shape, 0)
        if networks is not None:
            days = self.eval_env.rules.trading_days
            noise = torch.randn(*drawn.shape, days, generator=self.generators["noise"], dtype=torch.float64)
        return RolloutInputs(
            genes=self.genes,
            weights=self.ridge.weights,
            by_fold=self.ridge.by_fold,
            drawn=drawn,
            noise=self.learning.exploration_noise * noise,
            networks={} if networks is None else network_tensors(networks),
            cash_value=self.cash_value.weights,
            opportunity_knots=self.cash_value.opportunity_knots,
            starts=starts,
            is_acting=torch.tensor(self.updates > self.learning.warm_up),
            elites=elite_count(self.evolution),
            most_transitions=self.replay.capacity,
            known=self.elite_forecasts,
        )

    def evolve_population(self, fitness: Tensor) -> None:
        """Replace all agents but the elites by mutated children of the fittest, with their networks and moments."""
        self.elites = ranked(fitness)[: elite_count(self.evolution)].tolist()
        self.genes, parents = next_generation(self.genes, fitness, self.evolution, self.generators["evolution"])
        self.population.inherit(parents, self.generators["sight"])
        self.founders = [self.founders[parent] for parent in parents.tolist()]

    def train_population(self, played: PopulationResults) -> dict[str, float]:
        """Improve the value of cash by least squares and the networks by gradient; build the champion from the elites.

        Returns:
            Losses for the record; nothing without networks.
        """
        self.safe_point()
        if self.learning.gamma > 0 and self.replay.size:
            held, learning = self.replay.sample(slice(None, self.replay.size)), self.learning
            transitions = held.after, held.next, held.next_best
            del held  # its other half would take memory until the end of the training
            self.cash_value = improve(self.cash_value, *transitions, learning.gamma, learning.policy_iterations)
        self.safe_point()
        learned = self._train_networks() if self.population.networks is not None else {}
        champion, self.elite_forecasts = self._committee(self.elites, played.gate)
        self.champion = self.deployed(champion)
        return learned

    def _train_networks(self) -> dict[str, float]:
        """Take the gradient steps of a generation, once the buffer is ready; random numbers are drawn beforehand."""
        networks, learning, relative = self.population.networks, self.learning, self.days.relative
        assert networks is not None and self.updating is not None
        if not self.replay.is_ready:
            logger.info("%s", self.replay)
            return {}
        rows, draws = learning.batch_size * learning.gradient_accumulation, self.generators["batches"]
        shape = (learning.gradient_steps, rows)
        networks.calibration.fill_(self.replay.calibration())
        orders = relative.draw(learning.gradient_steps * rows, draws).unflatten(0, shape)
        replayed = torch.randint(self.replay.size, shape, generator=draws).to(self.device)
        self.updating.begin(self.traders, self.cash_value, orders, replayed)
        for _ in progress(range(learning.gradient_steps), "train", "update"):
            self.safe_point()
            self.updating.take(trains_actor=self.updates >= learning.warm_up)
            self.updates += 1
        return self._losses_record(self.updating.losses)

    def _losses_record(self, losses: Tensors) -> dict[str, float]:
        """Log the (updates, A) losses of each agent; return the means over agents, with gradient norms."""
        networks = self.population.networks
        assert networks is not None
        found = {name: own.cpu() for name, own in losses.items()}
        for row, agent in enumerate(self.population.agents):
            for name, loss in found.items():
                agent.losses[name].extend(loss[:, row].tolist())
        optimizers = {"critic": networks.critic_optimizer, "actor": networks.actor_optimizer}
        return {
            **{f"{name}_loss": float(loss.mean()) for name, loss in found.items()},
            **{f"{name}_gradient_norm": float(own.norm.mean()) for name, own in optimizers.items()},
            "skipped_updates": float(sum(own.skipped.sum() for own in optimizers.values())),
        }

    def committee(self, rows: Sequence[int], gates: Tensor | None = None) -> DDPGAgent:
        """Return some agents as one: their ridge regressions averaged, their networks stacked; tested out of fold.

        Args:
            gates: (P,) of all actors; default: no residual is kept.
        """
        return self._committee(rows, gates)[0]

    def _committee(self, rows: Sequence[int], gates: Tensor | None) -> tuple[DDPGAgent, KnownForecasts | None]:
        """Return likewise the committee, and the forecasts of its members, if they have networks."""
        chosen, networks, weighed = torch.tensor(list(rows)), self.population.networks, None
        genes, by_fold, weights = self.genes[chosen], self.ridge.by_fold[chosen], self.ridge.weights[chosen]
        traders, best = traders_of(genes, weights, "cpu").mean(), list[tuple[slice, Forecasts]]()
        if networks is None:
            expected = self.days.out_of_fold(by_fold.mean(0)[None])
        else:
            networks, targets = networks.rows(chosen.to(self.device)), genes[:, TARGET].long()
            expected, blend = self.days.blended(by_fold, networks.critic_target.reward, targets.tolist())
            expected = self.days.joining(expected, self.eval_env.account.ranked, best)
            gate = torch.zeros(len(chosen)) if gates is None else gates[chosen]
            weighed = Committee.of(blend.weights, weights, self.days.relative.deviation, targets, gate, self.device)
        target = int((torch.tensor(TARGET_PERCENTS) - traders.target_percent).abs().argmin())
        evidence = self.days.evidence(expected, target, self.trials)
        parts = traders.to(self.device), self.cash_value, self.eval_env.rules, evidence, networks, weighed
        known = None
        if networks is not None:
            known = KnownForecasts(list(rows), Forecasts.on_days(best, len(self.days.tradable)), blend)
        return DDPGAgent(self.days.inputs, *parts), known

    def deployed(self, agent: DDPGAgent) -> DDPGAgent:
        """Return what is deployed of an agent: where evidence is required and it has none, it holds the market."""
        is_trusted = self.evaluation.evidence == "report" or agent.evidence.is_significant
        return agent if is_trusted else agent.holding_market()

    @property
    def trials(self) -> int:
        """Agents among which the elites were selected out of fold, for which p-values are adjusted.

        Agents without networks are not counted.
        """
        if self.population.networks is None:
            return 1
        return max(self.examined, len(self.genes))

    @property
    def best_agent(self) -> DDPGAgent:
        """The champion: the committee of the last generation's elites, which is deployed."""
        return self.champion

    def validate_best_agent(self) -> dict[str, float]:
        """Play the champion on the validation windows; nothing is selected by the result."""
        champion = self.champion
        rollout = roll_out(
            self.val_env.account,
            champion.traders,
            champion.forecasts(self.market, self.days.later),
            self.cash_value,
            self.validation_starts,
            safe_point=self.safe_point,
            label="validate",
            graph=self.val_graph,
            policy=champion.policy,
        )
        self.champion_score = float(rollout.profit_percent)
        return {"champion": self.champion_score}

    def learning_record(self, played: PopulationResults) -> dict[str, float]:
        """Return the out-of-fold quality of forecasts and value, and the diversity of the population."""
        best = ranked(played.fitness)[: elite_count(self.evolution)]
        found = {
            "explained": float(self.ridge.explained.numpy().mean()),
            "explained_best": float(self.ridge.explained.max()),
            "initial_value": float(played.initial_value[best].mean()),
            "elite_profit_percent": float(played.profit_percent[best].mean()),
            "founders": len(set(self.founders)),
        }
        if self.population.networks is not None:
            found |= played.learned(best) | {
                "noise_scale": self.learning.exploration_noise,
                "best_elites": self.fittest["elites"],
                "best_children": self.fittest["children"],
            }
        return found

    def end_training(self) -> None:
        """Free what only further generations need: inputs of the training days; their results stay, to be judged by."""
        del self.days, self.worker, self.rollouts, self.updating

    @property
    def seconds(self) -> Sequence[dict[str, float]]:
        """Seconds of the last generations by phase."""
        return self.log.seconds

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add a phase that ran outside the trainer to the times of this generation."""
        self.log.add(phase, seconds)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, as nested dicts of tensors and JSON values.

        Ridge forecasts follow from genes and market; the champion's are stored so that it runs without refitting.
        """
        return {
            "population": {"genes": self.genes, **self.population.state_dict()},
            "cash_value": self.cash_value.state_dict(),
            "champion": self.champion.state_dict(),
            "replay": self.replay.state_dict(),
            "progress": {
                "generation": self.generation,
                "updates": self.updates,
                "examined": self.examined,
                "fittest": self.fittest,
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
        self.generation, self.updates, self.examined = (progress[n] for n in ("generation", "updates", "examined"))
        self.champion_score, self.fittest = progress["champion_score"], dict(progress["fittest"])
        self.elites, self.founders = list(progress["elites"]), list(progress["founders"])
        self.genes, self.elite_forecasts = state["population"]["genes"].cpu(), None
        self.population.load_state_dict(state["population"])
        self.champion = DDPGAgent.from_state(state["champion"], self.device)
        self.cash_value = CashValue.from_state(state["cash_value"], self.eval_env.rules, self.device)
        self.replay.load_state_dict(state["replay"])
        self.log.seconds = deque(progress["seconds"], maxlen=HISTORY)
        for name, generator in self.generators.items():
            generator.set_state(state["random"]["named"][name])
        set_random_state(state["random"]["global"])

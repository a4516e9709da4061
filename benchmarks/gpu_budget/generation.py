"""One generation of the trainer on a card that is not there, phase by phase; days and updates of networks are apart.

It is one as most are: the replay is full.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu_budget.card import Meter, Phase, card, joined
from benchmarks.harness import FULL_COLUMNS, FULL_DAYS, FULL_INVESTABLE, full_scale, random_market
from benchmarks.trainers import run_generation, trainer_on
from data.market import Market
from environment.quotes import Quotes
from environment.trading_env import TradingEnvironment
from training import rollout
from training.erl_trainer import ERLTrainer, UpdateInputs
from training.forecasts.training_days import TrainingDays
from training.generation_log import GenerationLog
from utils.config.trader import Config, DataConfig, EnvironmentConfig, EvaluationConfig, LearningConfig

SET_UP = "set up"
"""Name of the phase that is there once a run."""
DAYS = ", days"
"""End of the names of phases in which every step is a day of a rollout."""
UPDATES = "train, updates"
"""Name of the phase of all updates of networks."""
APART = (SET_UP,)
"""Names of what is no phase of a generation."""
MOST_WAITS = {("evaluate", "evolve", "train"): 180, ("validate",): 40}
"""Of the host for the device, outside of days and updates, in which there is none.

Rows and batches are drawn by the host and go to the device, what belongs to agents goes there with each change of
them, losses to the driver, scores of the elites to the host, which weighs the champion's evidence: about as often
whatever the population and the number of updates are. The validation windows are played by the champion, which reads an
episode's summary.
"""


@dataclass(frozen=True)
class Size:
    """A market on which generations are counted, and the settings of the trainer."""

    name: str
    config: Config
    days: int
    columns: int
    investable: int

    def ready(self) -> tuple[Market, TrainingDays]:
        """Draw the market and sum up its training days, as a run does once, on the CPU."""
        market = random_market(self.config, self.days, self.columns, self.investable)
        return market, TrainingDays.of(market, Quotes.on(market, market.investable_columns), self.config.env)


FULL = Size("full", full_scale(), FULL_DAYS, FULL_COLUMNS, FULL_INVESTABLE)
_SMALL_CONFIG = replace(
    full_scale(),
    env=EnvironmentConfig(trading_days=2, settlement_days=1),
    split=DataConfig(context_window_days=32),
    learning=LearningConfig(replay_capacity=1000, gradient_steps=2, gradient_accumulation=1, batch_size=64, hidden=8),
    evaluation=EvaluationConfig(fitness_windows=4, exploration_windows=2, validation_windows=2),
)
SMALL = Size("small", _SMALL_CONFIG, 700, 8, 5)


class _Log(GenerationLog):
    """A log whose phases are those of the meter."""

    meter: Meter

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count a phase."""
        self.seconds[-1][name] = 0.0
        with self.meter.within(name):
            yield


def count_generation(
    size: Size, agents: int, market: Market, days: TrainingDays, generations: int = 1
) -> tuple[dict[str, Phase], list[str]]:
    """Run generations with a full replay; return the phases of the first, and what must not be there.

    Args:
        generations: of which all but the first must launch the same operations within updates.

    Raises:
        MixedDevicesError, DrawnOnCardError: what a card refuses.
    """
    config = replace(size.config, evolution=replace(size.config.evolution, population_size=agents))
    with card() as meter, _days_apart(meter), _updates_apart(meter):
        meter.name = SET_UP
        env = TradingEnvironment.on(market, config.env, "cuda")
        known = _on_card(days)
        log = _Log(1, torch.device("cuda"))
        log.meter = meter
        settings = config.learning, config.evolution, config.evaluation
        with mock.patch.object(TrainingDays, "of", lambda *_: known):
            trainer = trainer_on(market, env, *settings, seed=config.seed, log=log)
        trainer.replay_buffer.size = trainer.replay_buffer.capacity
        meter.name = "record"
        run_generation(trainer)
        phases = dict(meter.phases)
        following = [_lines_of_next(trainer, meter) for _ in range(generations - 1)]
    faults = [
        f"{name}: the host waits {count} times: {what}"
        for name, phase in phases.items()
        for what, count in phase.waits.items()
        if name.endswith(DAYS) or name == UPDATES
    ]
    return phases, faults + too_many_waits(phases) + changed_lines(following)


def too_many_waits(phases: Mapping[str, Phase]) -> list[str]:
    """List the groups of phases in which the host waits more often than it may."""
    counts = {names: sum(phases[name].waits.total() for name in names) for names in MOST_WAITS}
    return [
        f"{' + '.join(names)}: the host waits {counts[names]} times, at most {most} are allowed"
        for names, most in MOST_WAITS.items()
        if counts[names] > most
    ]


def _lines_of_next(trainer: ERLTrainer, meter: Meter) -> Counter[str]:
    """Run a generation; return what is launched as graphs, by line of code."""
    meter.phases.clear()
    run_generation(trainer)
    return Counter({f"{UPDATES}, {line}": count for line, count in meter.phases[UPDATES].lines.items()})


def changed_lines(generations: Sequence[Counter[str]]) -> list[str]:
    """List the lines of code that launch other numbers of operations in one of these generations than in the first."""
    return [
        f"{line}: {generations[0][line]:,} operations in the second generation, {lines[line]:,} in a later one"
        for lines in generations[1:]
        for line in sorted(lines.keys() | generations[0].keys())
        if lines[line] != generations[0][line]
    ]


def _on_card(days: TrainingDays) -> TrainingDays:
    """Return the training days with all that the trainer reads on the card."""
    x = days.samples.x.to("cuda")
    known = days.transitions
    names = ("reward", "following", "terminated", "allowed")
    moved: dict[str, Any] = {name: getattr(known, name).to("cuda") for name in names}
    transitions = replace(known, x=x, **moved)
    samples, later = replace(days.samples, x=x), days.later.to("cuda")
    tradable, risk = days.tradable.to("cuda"), days.relative_risk.to("cuda")
    return replace(days, tradable=tradable, relative_risk=risk, samples=samples, transitions=transitions, later=later)


@contextlib.contextmanager
def _days_apart(meter: Meter) -> Iterator[None]:
    """Count the days of a rollout to a phase of their own, and play them: from the first day's begin to the summary."""

    def days(count: range, label: str, _: str) -> Iterator[int]:
        with meter.within(label + DAYS):
            yield from count

    with mock.patch.object(rollout, "progress", days), mock.patch("torch.backends.cuda.is_built", lambda: False):
        yield


@contextlib.contextmanager
def _updates_apart(meter: Meter) -> Iterator[None]:
    """Count updates of networks to a phase of their own; the first of a generation for all others, which are alike."""
    finished, losses = dict[str, Phase](), list[Tensor]()
    update = ERLTrainer.update_networks

    def counted(trainer: ERLTrainer, inputs: UpdateInputs) -> Tensor:
        if UPDATES in meter.phases:
            meter.phases[UPDATES] = joined([meter.phases[UPDATES], finished[UPDATES]])
            return losses[0]
        with meter.within(UPDATES):
            losses.append(update(trainer, inputs))
        finished[UPDATES] = joined([meter.phases[UPDATES]])
        return losses[0]

    with mock.patch.object(ERLTrainer, "update_networks", counted):
        yield

"""Rollouts: many agents over many windows at once, as lanes of one account, beside their benchmark.

A population is evaluated on windows of training days, out of fold. Windows begin at the benchmark, whose first orders
everybody gives, and end marked to market.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from data.market import Market
from data.splits import Span, consecutive_windows
from environment.account import COUNTS, Summary
from environment.portfolio import Policy, Portfolio
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from models.evolution import elite_count, ranked
from models.policy import Forecasts, decide
from models.population import Population
from training.forecasts.training_days import TrainingDays
from utils.arrays import Float64Array
from utils.config.trader import EvaluationConfig, EvolutionConfig, LearningConfig
from utils.memory_guard import require_memory
from utils.progress import progress

RISK_AVERSION = 30.0
"""Of fitness: a year's variance of the profit over the benchmark costs half of this."""
TABLE_BYTES = 2**29
"""Memory that the forecasts, or the accounts, of what is played at a time may take."""
_CELLS = 2**17
"""Lanes times stocks of accounts that are played at a time: of few lanes few stocks are traded on a day."""
_CELL_BYTES, _STEP_BYTES = 340, 56
"""Measured: of a lane in `roll_out`, by stocks for accounts, scores and the search of the band, and by sessions."""


@dataclass(frozen=True)
class Rollout:
    """A agents on W windows."""

    summary: Summary
    """(A * W,) each."""
    equity: Tensor
    """(steps + 1, A, W) float64, currency units."""
    benchmark: Tensor
    """(steps + 1, W) of the benchmark."""
    day: Tensor
    """(steps, A * W) int32, of each close but the last."""
    cash: Tensor
    """(steps + 1, A * W) float32 share of the equity at each close."""
    price: Tensor
    """(steps + 1, A * W) float32 shadow price, percent; the last one is that of the day before."""

    @property
    def excess(self) -> Tensor:
        """(A, W) profit over the benchmark, percent of the initial capital."""
        last = self.equity[-1] - self.benchmark[-1]
        return 100 * last / self.equity[0]

    def utility(self) -> Tensor:
        """Return the same less half the risk aversion times the summed squares of its daily changes, (A, W)."""
        daily = (self.equity - self.benchmark[:, None]).diff(dim=0) / self.equity[0]
        return self.excess - 50 * RISK_AVERSION * daily.square().sum(0)

    @property
    def transitions(self) -> dict[str, Tensor]:
        """Return consecutive closes, (steps, A, W) each: see `models.replay_buffer.AccountTransitions`."""
        recorded = self.day, self.cash, self.price
        day, cash, price = (part.unflatten(1, self.equity.shape[1:]) for part in recorded)
        reward = (self.equity.diff(dim=0) * (100 / self.equity[0])).float()
        after = {"next_cash": cash[1:], "next_price": price[1:]}
        return {"day": day, "cash": cash[:-1], "price": price[:-1], "reward": reward, **after}


@torch.no_grad()
def roll_out(
    portfolio: Portfolio,
    forecasts: Forecasts,
    genes: Tensor,
    starts: Tensor,
    steps: int,
    *,
    row: Tensor | None = None,
    noise: Tensor | None = None,
    shrink: Tensor | float = 1.0,
    timing: Tensor | float = 0.0,
    safe_point: Callable[[], None] = lambda: None,
    label: str = "Evaluating agents",
    **how: Any,
) -> Rollout:
    """Play all agents on all windows, the same for every agent.

    Args:
        forecasts: of the agents, or of one for all.
        genes: (A, genes) of the agents.
        starts: (W,) first days of the windows.
        row: (A,) of the forecasts, of each agent; default: its own, or the only one.
        noise: (E, steps, n) percent that is added to the scores on the last E windows.
        shrink, timing: (A,) or for all, see `decide`.
        how: see `Portfolio.begin`.
    """
    account, agents, windows = portfolio.account, len(genes), len(starts)
    agent = torch.arange(agents, device=account.device).repeat_interleave(windows)
    of_lane, cost = genes[agent], portfolio.rules.cost_rate
    shares = (torch.as_tensor(share, dtype=torch.float64, device=account.device) for share in (shrink, timing))
    shrink, timing = (share.expand(agents)[agent] for share in shares)
    portfolio.begin(starts, steps=steps, copies=agents, **how)
    assert row is not None or len(forecasts.score) in (1, agents)
    row = agent % len(forecasts.score) if row is None else row[agent]
    noise = None if noise is None else noise.to(account.device)
    day, cash, price = list[Tensor](), list[Tensor](), list[Tensor]()
    for step in progress(range(steps), label, "day"):
        safe_point()
        score, level, risk = forecasts.at(row, account.day)
        if noise is not None:
            score.view(agents, windows, -1)[:, windows - len(noise) :] += noise[:, step]
        known = portfolio.at_close
        decision = decide(score, level, risk, of_lane, cost=cost, **known, shrink=shrink, timing=timing)
        day.append(account.day.int())
        cash.append((account.cash / account.equity).float())
        price.append(decision.price.float())
        portfolio.trade(decision.target)
    cash, price = [*cash, (account.cash / account.equity).float()], [*price, price[-1]]
    equity = account.equity_curve.unflatten(1, (agents, windows))
    return Rollout(account.summary(), equity, portfolio.benchmark.equity_curve, *map(torch.stack, (day, cash, price)))


def by_band(forecasts: Forecasts, genes: Tensor, shrink: float, timing: float) -> Policy:
    """Return the policy that follows forecasts of the days that are played, by (1, genes), see `decide`."""

    def act(portfolio: Portfolio) -> Tensor:
        score, level, risk = forecasts.at(0, portfolio.account.day)
        numbers, cost = genes.expand(len(score), -1), portfolio.rules.cost_rate
        known = portfolio.at_close
        return decide(score, level, risk, numbers, cost=cost, **known, shrink=shrink, timing=timing).target

    return act


def follow(agent: DDPGAgent, forecasts: Forecasts) -> Policy:
    """Return the policy of an agent, by its forecasts of the days that are played."""
    return by_band(forecasts, agent.acting_genes, agent.shrink, agent.timing)


def windows_at_a_time(agents: int, windows: int, stocks: int) -> int:
    """Return the number of windows on which agents are played together."""
    return max(1, min(windows, _CELLS // (agents * stocks)))


def require_memory_to_train(
    market: Market,
    days: TrainingDays,
    env: TradingEnvironment,
    learning: LearningConfig,
    evolution: EvolutionConfig,
    evaluation: EvaluationConfig,
) -> None:
    """Raise ConfigError where a generation, or the judgement of the champion, takes more memory than is free."""
    stocks, steps = env.portfolio.quotes.stocks, env.rules.episode_steps
    agents = {"--population-size": evolution.population_size}
    fitness, exploration, pickers = (
        {f"--evaluation.{name.replace('_', '-')}": getattr(evaluation, name)}
        for name in ("fitness_windows", "exploration_windows", "random_pickers")
    )
    windows = evaluation.fitness_windows + evaluation.exploration_windows
    together = windows_at_a_time(evolution.population_size, windows, stocks)
    recorded = {"sessions": steps, "bytes": _STEP_BYTES}
    batch = {"--learning.batch-size": learning.batch_size, "folds": days.folds}
    drawn = {"--learning.gradient-steps": learning.gradient_steps, **batch}
    drawn["--learning.gradient-accumulation"] = learning.gradient_accumulation
    cells = days.tradable.numel()
    parts: dict[str, dict[str, float]] = {
        "selection": {**agents, "--evolution.tournament-size": evolution.tournament_size, "bytes": 24},
        "accounts": {**agents, "windows": together, "stocks": stocks, "bytes": _CELL_BYTES},
        "fitness": {**agents, **fitness, **recorded},
        "exploration": {**agents, **exploration, **recorded},
        "noise": {**exploration, "sessions": steps, "stocks": stocks, "bytes": 12},
        "forecasts of the elites": {
            "--population-size": elite_count(evolution),
            "days x stocks": cells,
            "bytes": 8,
        },
        "random pickers": {**pickers, **recorded, "sessions": market.splits.validation.days},
        "updates": {**agents, **batch, "--learning.hidden": learning.hidden, "bytes": 32},
        "batches": {**drawn, "bytes": 48},
    }
    for what, factors in parts.items():
        require_memory(what, factors)


class Windows(NamedTuple):
    """The windows of an evaluation, the same for all P agents; on the last E of them agents explore."""

    starts: Tensor
    """(W,) first days."""
    noise: Tensor
    """(E, steps, n) exploration noise, in deviations of a session's results."""


@dataclass(frozen=True)
class PopulationResults:
    """Results of A agents on W windows, on the CPU."""

    fitness: Tensor
    """(A,) mean profit over the benchmark less its risk, percent of the initial capital."""
    profit_percent: Tensor
    trading: dict[str, float]
    """Sums over all agents and windows of counts and costs."""


def kept_windows(days: int, windows: int, most: int) -> tuple[Tensor, Tensor]:
    """Thin the transitions of one agent to a number, evenly over days and windows.

    Returns:
        (D, 1) days and the (D, K) windows that are kept on each; every day continues with the windows after those of
        the day before.
    """
    per_day = min(windows, max(1, most // days))
    day = torch.arange(0, days, -(-days * per_day // max(1, most)))[:, None]
    window = (torch.arange(len(day))[:, None] * per_day + torch.arange(per_day)) % windows
    return day, window.sort(dim=1).values


class PopulationRollouts:
    """Plays a population on the training days of a market."""

    def __init__(self, days: TrainingDays, safe_point: Callable[[], None]) -> None:
        """Play these days; `safe_point` is called before every day, and may raise to stop."""
        self.training_days, self.safe_point = days, safe_point

    def evaluate(
        self,
        population: Population,
        windows: Windows,
        most_transitions: int,
        timing: float = 0.0,
        *,
        env: TradingEnvironment,
    ) -> tuple[PopulationResults, dict[str, Tensor]]:
        """Play all agents; return their results and the (N, ...) transitions of the fittest, for the replay buffer.

        Transitions are in the order of days, elites (the fittest first) and windows.

        Args:
            most_transitions: upper limit for all elites together.
            timing: share of the levels of scores that is believed, see `decide`.
            env: in whose accounts they play.
        """
        steps, agents = windows.noise.shape[1], [*range(len(population))]
        judged, noise = len(windows.starts) - len(windows.noise), windows.noise * float(population.networks.scale[0])
        rollouts, order = list[Rollout](), list[Tensor]()
        size = windows_at_a_time(len(agents), len(windows.starts), env.portfolio.quotes.stocks)
        for group in self._groups(windows.starts.cpu(), steps, len(agents)):
            asked = torch.zeros(len(self.training_days.tradable), dtype=torch.bool)
            asked[windows.starts[group, None].cpu() + torch.arange(steps)] = True
            forecasts = self.training_days.forecasts(population.networks.target, agents, asked)
            for some in group.split(size):
                exploring = some[some >= judged] - judged
                played = env.portfolio, forecasts, population.values, windows.starts[some], steps
                how: dict[str, Any] = {"noise": noise[exploring], "timing": timing, "safe_point": self.safe_point}
                rollouts.append(roll_out(*played, **how))
                order.append(some)
        place = torch.cat(order).argsort()
        utility = torch.cat([part.utility().cpu() for part in rollouts], dim=1)[:, place][:, :judged]
        profit = torch.cat([part.equity[-1].cpu() for part in rollouts], dim=1)[:, place][:, :judged].mean(1)
        capital = env.rules.initial_capital
        names, fitness = (*COUNTS, "traded", "costs"), utility.mean(1)
        sums = {name: sum(float(getattr(part.summary, name).sum()) for part in rollouts) for name in names}
        trading = sums | {name: int(sums[name]) for name in COUNTS}
        results = PopulationResults(fitness, 100 * (profit / capital - 1), trading)
        elites = ranked(fitness)[: len(population.elites)]
        recorded = [part.transitions for part in rollouts]
        place = place.to(env.portfolio.device)
        joined = {name: torch.cat([part[name] for part in recorded], dim=2)[:, :, place] for name in recorded[0]}
        return results, _thinned(joined, elites, most_transitions // len(elites))

    def _groups(self, starts: Tensor, steps: int, agents: int) -> Iterator[Tensor]:
        """Yield the (W,) windows in groups near to one another in time, whose forecasts fit into memory together."""
        longest = TABLE_BYTES // (4 * agents * self.training_days.tradable.shape[1])
        waiting = starts.argsort()
        while len(waiting):
            first = starts[waiting[0]]
            is_near = starts[waiting] <= first + max(0, longest - steps)
            yield waiting[is_near].sort().values
            waiting = waiting[~is_near]

    def out_of_fold(
        self, forecasts: Forecasts, genes: Tensor, train: Span, *, env: TradingEnvironment
    ) -> tuple[Float64Array, Float64Array]:
        """Play one agent's forecasts of the training days on windows that follow one another over all of them.

        Returns:
            The (2, days) daily returns over the benchmark's, percent, of what differences between its scores order, and
            of what levels do; and the (2,) costs of both beyond the benchmark's, percent a day.
        """
        steps, one_by_one = env.rules.episode_steps, torch.eye(2, dtype=torch.float64, device=genes.device)
        how = dict(zip(("shrink", "timing"), one_by_one, strict=True))
        starts = consecutive_windows(train, steps)
        played = roll_out(env.portfolio, forecasts, genes.repeat(2, 1), starts, steps, label="Weighing evidence", **how)
        held = played.benchmark[:, None]
        excess = 100 * (played.equity.diff(dim=0) / played.equity[:-1] - held.diff(dim=0) / held[:-1])
        costs = played.summary.costs.view(2, -1) - env.portfolio.benchmark.costs
        of_day = 100 * (costs / played.equity[0]).mean(1) / steps
        return excess.movedim(0, 2).flatten(1).cpu().numpy(), of_day.cpu().numpy()


def _thinned(transitions: dict[str, Tensor], agents: Tensor, share: int) -> dict[str, Tensor]:
    """Return the transitions of some agents, thinned to each one's share."""
    days, _, windows = transitions["cash"].shape
    device = transitions["cash"].device
    day, window = (index[:, None].to(device) for index in kept_windows(days, windows, share))
    return {name: part[day, agents[:, None].to(device), window].flatten(0, 2) for name, part in transitions.items()}

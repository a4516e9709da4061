"""A champion beside its baselines on the same windows, under the same rules and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features import OPEN
from data.market import Market, MarketTensors
from data.synthetic.built_in import PlantedScores
from environment.ledger import EpisodeSummary
from environment.trading_env import VectorTradingEnvironment
from models.ddpg_agent import DDPGAgent
from training.evaluation.baselines import (
    FixedOrder,
    ScoreRule,
    equal_weight_equity,
    random_picker,
    score_policy,
    tune_rule,
)
from training.rollout import play, roll_out
from utils import metrics

CHAMPION, RANDOM, EQUAL = "champion", "random picker", "equal weight"
RULE, ORACLE = "planted rule", "oracle"
COLUMNS = ("policy", "return %", "std error", "Sharpe", "drawdown %", "trades", "win rate %", "costs %")
_BAND_PERCENTILES = (5, 95)


@dataclass(frozen=True)
class Comparison:
    """Results on some windows."""

    rows: list[dict[str, Any]]
    """One a policy, keys as `COLUMNS`; percent of the initial capital a window."""
    curves: dict[str, NDArray[np.float64]]
    """(steps + 1,) equity by policy, mean over the windows, in currency units."""
    random_band: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Percentiles 5 and 95 over random pickers of their mean equity."""


def tune_planted(env: VectorTradingEnvironment, scores: PlantedScores, starts: Tensor) -> dict[str, ScoreRule]:
    """Give the rule and the oracle, by name, their best fixed size and target on (training) windows.

    They know what is planted: their scores are the expected returns of a trade, and what would earn less than a round
    trip costs is not ordered.
    """
    round_trip = 2 * env.rules.cost_rate
    return {
        name: tune_rule(env, known, round_trip, starts)
        for name, known in ((RULE, scores.rule), (ORACLE, scores.oracle))
    }


def compare(
    champion: DDPGAgent,
    env: VectorTradingEnvironment,
    tensors: MarketTensors,
    market: Market,
    starts: Tensor,
    *,
    random_pickers: int,
    generator: torch.Generator,
    planted: Mapping[str, ScoreRule] | None = None,
) -> Comparison:
    """Play the champion and its baselines on the windows from `starts`, (W,) days on the environment's device."""
    windows, days = len(starts), env.rules.episode_steps + 1
    episodes = roll_out(env, champion.networks, tensors, starts, label="compare")
    played = {CHAMPION: (episodes.equity.reshape(days, windows), episodes.summary)}
    for name, rule in (planted or {}).items():
        summary, equity = play(env, score_policy(rule, starts.device), starts)
        played[name] = (equity, summary)
    summary, equity = play(env, random_picker(generator, FixedOrder()), starts.repeat(random_pickers))
    pickers = equity.view(days, random_pickers, windows).cpu().numpy()
    by_picker = pickers.mean(axis=2)
    open_ = market.data_array[:, market.investable_columns, OPEN]
    held = np.stack(
        [equal_weight_equity(market.close, open_, start, days - 1, env.rules) for start in starts.tolist()], axis=1
    )
    capital = env.rules.initial_capital
    rows = [_row(name, curve.cpu().numpy(), totals, capital) for name, (curve, totals) in played.items()]
    rows.append(_row(RANDOM, pickers.reshape(days, -1), summary, capital) | {"std error": _spread(by_picker)})
    rows.append(_row(EQUAL, held, None, capital))
    curves = {name: curve.mean(1).cpu().numpy() for name, (curve, _) in played.items()}
    curves |= {RANDOM: pickers.mean(axis=(1, 2)), EQUAL: held.mean(axis=1)}
    low, high = np.percentile(by_picker, _BAND_PERCENTILES, axis=1)
    return Comparison(rows, curves, (low, high))


def _spread(equity: NDArray[np.float64]) -> float:
    """Standard deviation of a picker's mean return over the windows, between pickers, in percent."""
    return float(metrics.total_return_percent(equity.T).std())


def _row(name: str, equity: NDArray[np.float64], totals: EpisodeSummary | None, capital: float) -> dict[str, Any]:
    """One line of the table from (days, episodes) equity; the standard error is over the windows."""
    returns = metrics.total_return_percent(equity.T)
    row: dict[str, Any] = {
        "policy": name,
        "return %": float(returns.mean()),
        "std error": float(returns.std() / max(1.0, np.sqrt(returns.size - 1))),
        "Sharpe": float(metrics.sharpe(equity.T).mean()),
        "drawdown %": float(metrics.max_drawdown_percent(equity.T).mean()),
    }
    if totals is None:
        return row | {"trades": None, "win rate %": None, "costs %": None}
    trades = float(totals.trades.sum())
    return row | {
        "trades": trades / returns.size,
        "win rate %": 100 * float(totals.wins.sum()) / trades if trades else None,
        "costs %": 100 * float(totals.costs.mean()) / capital,
    }


def by_policy(comparison: Comparison) -> Mapping[str, dict[str, Any]]:
    """The rows by the name of their policy."""
    return {row["policy"]: {key: value for key, value in row.items() if key != "policy"} for row in comparison.rows}

"""The trading environment as a Gymnasium environment: a `Portfolio` of one lane with its observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from data.features import NUM_FEATURES, NormalizationStats, observed_features
from environment.ledger import EXIT_REASONS, Bars
from environment.portfolio import Portfolio
from utils.config.trader import EnvironmentConfig
from utils.spaces import ACCOUNT_FEATURES, MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_TARGET_PERCENT, spread_positions

Observation = dict[str, NDArray[np.float32]]
_PORTFOLIO_COLUMNS = 4
"""The first position features: held, days held / maximum, unrealised return, size / maximum."""


class TradingEnvironment(gym.Env[Observation, NDArray[np.float32]]):
    """One account as a Gymnasium environment; one object serves every episode.

    Observation of day d, everything up to and including its close:
        `market` (columns, 9): today's normalised features; `portfolio` (investable, 4): held, days held / maximum,
        unrealised return, size / maximum size; `exits` (investable, 2): distance to the sale target, sessions without
        a bar / maximum; `account` (3,): cash and exposure as fractions of the initial capital, fraction of the trading
        period left.
    Action (investable, 2): coefficient in [0, 10] (below 1: no order), sale target in [10, 50] percent.
    Reward: change of equity in percent of the initial capital, less the configured penalties.
    An episode terminates on day `end_idx`, when every position has been closed; it is never truncated.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(
        self,
        data_array: NDArray[np.float32],
        dates: NDArray[np.datetime64],
        normalization_stats: NormalizationStats,
        start_idx: int,
        end_idx: int,
        trading_end_idx: int,
        *,
        investable_columns: Sequence[int] | NDArray[np.int64] | None = None,
        rules: EnvironmentConfig | None = None,
        input_clip: float = 8.0,
        volume: NDArray[np.float32] | None = None,
    ) -> None:
        """Trade `investable_columns` (default: all) of the data; `volume` (days, columns) is for a volume cap only."""
        super().__init__()
        if data_array.ndim != 3 or data_array.shape[2] != NUM_FEATURES or len(dates) != len(data_array):
            raise ValueError(
                f"expected data_array (days, columns, {NUM_FEATURES}) and one date a day, got {data_array.shape} and "
                f"{len(dates)} dates; take both from a prepared StockDataLoader"
            )
        if volume is not None and volume.shape != data_array.shape[:2]:
            raise ValueError(f"expected volume of shape {data_array.shape[:2]}, days and columns, got {volume.shape}")
        columns = _checked_columns(investable_columns, data_array.shape[1])
        self.rules = rules or EnvironmentConfig()
        self.dates = dates
        self._market = observed_features(data_array, normalization_stats, input_clip)
        self._portfolio = Portfolio(Bars.of(data_array, columns, volume=volume), self.rules)
        self._set_window(start_idx, end_idx, trading_end_idx)
        stocks = len(columns)
        self.observation_space = gym.spaces.Dict(  # type: ignore[assignment]
            {
                "market": gym.spaces.Box(-input_clip, input_clip, (data_array.shape[1], NUM_FEATURES), np.float32),
                "portfolio": gym.spaces.Box(-np.inf, np.inf, (stocks, _PORTFOLIO_COLUMNS), np.float32),
                "exits": gym.spaces.Box(-np.inf, np.inf, (stocks, 2), np.float32),
                "account": gym.spaces.Box(-np.inf, np.inf, (ACCOUNT_FEATURES,), np.float32),
            }
        )
        low, high = (0.0, MIN_TARGET_PERCENT), (MAX_COEFFICIENT, MAX_TARGET_PERCENT)
        self.action_space = gym.spaces.Box(
            np.tile(np.array(low, np.float32), (stocks, 1)),
            np.tile(np.array(high, np.float32), (stocks, 1)),
            dtype=np.float32,
        )

    def _set_window(self, start_idx: int, end_idx: int, trading_end_idx: int) -> None:
        days = len(self.dates)
        are_days = all(isinstance(day, int | np.integer) for day in (start_idx, end_idx, trading_end_idx))
        if not are_days or not 0 <= start_idx < trading_end_idx <= end_idx < days:
            raise ValueError(
                f"expected 0 <= start_idx < trading_end_idx <= end_idx < {days} days, got start_idx={start_idx!r}, "
                f"trading_end_idx={trading_end_idx!r}, end_idx={end_idx!r}"
            )
        self.start_idx, self.end_idx, self.trading_end_idx = start_idx, end_idx, trading_end_idx

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        start_idx: int | None = None,
        end_idx: int | None = None,
        trading_end_idx: int | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with cash only, on the given window or on the last one.

        Args:
            options: may carry `start_idx`, `end_idx` and `trading_end_idx` too, for wrappers that pass only options.
        """
        super().reset(seed=seed)
        given = {"start_idx": start_idx, "end_idx": end_idx, "trading_end_idx": trading_end_idx}
        chosen = {n: day for source in (options or {}, given) for n, day in source.items() if day is not None}
        self._set_window(**{name: chosen.get(name, getattr(self, name)) for name in given})
        self._portfolio.reset(
            torch.tensor([self.start_idx]),
            steps=self.end_idx - self.start_idx,
            trading_steps=self.trading_end_idx - self.start_idx,
        )
        return self._observation(), self._info()

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide at today's close, live through tomorrow, observe its close.

        Raises:
            ValueError: the action has the wrong shape or is not finite.
        """
        self._require_reset()
        action = np.array(action, dtype=np.float32)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            raise ValueError(
                f"expected a finite action of shape {self.action_space.shape}, got shape {action.shape}"
                f"{'' if np.isfinite(action).all() else ' with values that are not finite'}"
            )
        reward = self._portfolio.step(torch.from_numpy(action)[None])
        return self._observation(), float(reward), self._portfolio.is_done, False, self._info()

    def _observation(self) -> Observation:
        portfolio = self._portfolio
        slots = portfolio.positions()
        positions = spread_positions(slots.stock, slots.features, portfolio.bars.stocks)[0].numpy()
        return {
            "market": self._market[int(portfolio.day), :, :NUM_FEATURES].copy(),
            "portfolio": positions[:, :_PORTFOLIO_COLUMNS].copy(),
            "exits": positions[:, _PORTFOLIO_COLUMNS:].copy(),
            "account": portfolio.account()[0].numpy(),
        }

    def _info(self) -> dict[str, Any]:
        portfolio = self._portfolio
        day = int(portfolio.day)
        return {
            "day_index": day,
            "date": str(self.dates[day]),
            "cash": float(portfolio.cash),
            "equity": float(portfolio.equity),
            "can_order": portfolio.is_trading,
            "candidates": portfolio.candidates()[0].numpy(),
        }

    def get_episode_summary(self) -> dict[str, float]:
        """Sum up the episode so far, see `EpisodeSummary`; once it is over its history is cleared."""
        self._require_reset()
        summary = self._portfolio.summary()
        totals = {f.name: getattr(summary, f.name).item() for f in fields(summary)}
        totals["win_rate"] = totals["wins"] / totals["trades"] if totals["trades"] else 0.0
        if self._portfolio.is_done:
            self._portfolio.clear_history()
        return totals

    def get_trades(self) -> list[dict[str, Any]]:
        """List the trades of the episode so far, in the order of the decisions; open positions have no exit."""
        self._require_reset()
        return trade_ledger(self._portfolio, 0)

    def _require_reset(self) -> None:
        if not self._portfolio.lanes:
            raise RuntimeError("the episode has not begun; call reset first")


def _checked_columns(columns: Sequence[int] | NDArray[np.int64] | None, total: int) -> NDArray[np.int64]:
    """Return the investable columns as an array; all of them if None."""
    if columns is None:
        return np.arange(total)
    chosen = np.asarray(columns)
    is_index = chosen.ndim == 1 and chosen.size > 0 and np.issubdtype(chosen.dtype, np.integer)
    if not is_index or chosen.min() < 0 or chosen.max() >= total or len(np.unique(chosen)) != len(chosen):
        raise ValueError(f"expected investable_columns to be distinct columns 0..{total - 1}, got {list(columns)}")
    return chosen.astype(np.int64)


def trade_ledger(portfolio: Portfolio, lane: int) -> list[dict[str, Any]]:
    """List every trade of one lane: days as indices, prices and money in currency units, `profit` before `costs`."""
    ledger, rate = portfolio.ledger(), portfolio.rules.cost_rate
    start = int(portfolio.day[lane]) - portfolio.step_index
    entry_lag = 1 if portfolio.rules.fill == "next_open" else 0
    columns = {f.name: getattr(ledger, f.name)[:, lane].tolist() for f in fields(ledger)}
    trades = []
    for row in np.flatnonzero(np.array(columns["value"]) > 0).tolist():
        at = {name: column[row] for name, column in columns.items()}
        closed = at["exit_step"] > 0
        order_day = start + row // portfolio.orders_per_day
        worth = at["shares"] * at["last_price"]
        trades.append(
            {
                "stock": at["stock"],
                "order_day": order_day,
                "entry_day": order_day + entry_lag,
                "entry_price": at["entry_price"],
                "shares": at["shares"],
                "value": at["value"],
                "target_price": at["target_price"],
                "exit_day": start + at["exit_step"] if closed else None,
                "exit_price": at["last_price"] if closed else None,
                "reason": EXIT_REASONS[at["reason"]] if closed else None,
                "profit": worth - at["value"],
                "costs": rate * (at["value"] + worth * closed),
            }
        )
    return trades

"""The trading environment: a batched account with the interface of a Gymnasium environment.

Fills, costs and rewards are those of the account, `environment/account.py`.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Optional, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.forms import FeatureInput, FeatureValues, observed_columns
from data.features.nine import CLOSE, FEATURES, NUM_FEATURES, OPEN, NormalizationStats, observed_features
from data.market import Market
from environment.account import COUNTS, Account
from environment.portfolio import Portfolio
from environment.position_history import positions
from environment.quotes import Quotes
from utils.arrays import DateArray, Float32Array, Int64Array
from utils.config.trader import EnvironmentConfig
from utils.memory_census import counted

Days = int | Int64Array | Tensor
"""A day, or one for each lane."""
STOCK_FEATURES, ACCOUNT_FEATURES = 6, 4
"""Of an observation's `portfolio` and `account`, see `TradingEnvironment`."""


class Observation(dict[str, Float32Array]):
    """What is observed of a day, by name, see `TradingEnvironment`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its market slice, which is the largest part of it."""
        return self["market"].shape


def _so_far(name: str) -> property:
    """Make a property of the episode so far, see `environment.account.Summary`; of lanes (lanes,) values."""

    def told(env: "TradingEnvironment") -> Any:
        env._require_reset()
        return env._told(name, env._of_lanes(getattr(env.account.summary(), name)))

    return property(told)


@counted("environments")
class TradingEnvironment(gym.Env[Observation, Float32Array]):
    """A batched trading account with the interface of a Gymnasium environment; one object serves every episode.

    Reset to one window it is a Gymnasium environment. Reset to arrays of windows it trades them in lockstep, as lanes:
    observations, actions, rewards and infos then have a leading dimension of lanes.

    Observation of day d, everything up to and including its close:
        `market` (columns, features): today's normalised features, named in `feature_names`: the nine, and the further
        columns of the data as ranks of the day, or against their own past where all stocks share them; `portfolio`
        (investable, 6): weight, weights in the benchmark now and after its own orders, unrealised return, sessions held
        / steps of the episode, sessions without a bar / most; `account` (4,): cash and exposure as shares of the
        equity, part of the allowed drawdown that is used (0 without a lock), share of the days left on which something
        may be bought.
    Action (investable,): target weights in [0, 1], see `environment.account`; the rest is cash. Weights that add up to
        more than 1 are divided by their sum; NaN keeps what is held, and so does a stock without a bar.
    Reward: change of equity in percent of the initial capital.
    An episode begins with cash and terminates on day `end_idx`, when everything has been sold; from `trading_end_idx`
    on no weight grows. It is never truncated.

    Beside the account the benchmark's is kept, equal weights of the investable stocks, see `environment.benchmark`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so
    num_trades, num_wins, num_losses = _so_far("trades"), _so_far("wins"), _so_far("losses")
    total_positions_opened, days_with_positions = _so_far("positions_opened"), _so_far("days_with_positions")
    days_without_positions, cumulative_reward = _so_far("days_without_positions"), _so_far("profit_percent")

    def __init__(
        self,
        data_array: Float32Array,
        dates: DateArray,
        normalization_stats: NormalizationStats,
        start_idx: Days,
        end_idx: Days,
        trading_end_idx: Days,
        *,
        investable_columns: Sequence[int] | Int64Array | None = None,
        tickers: Sequence[str] | None = None,
        rules: EnvironmentConfig | None = None,
        input_clip: float = 8.0,
        volume: Float32Array | None = None,
        further: Mapping[FeatureInput, Float32Array] | None = None,
        portfolio: Portfolio | None = None,
    ) -> None:
        """Trade `investable_columns` (default: all) of the data.

        Args:
            tickers: of all columns, by which `open_positions` names them; default: their numbers.
            volume: (days, columns), for a volume cap only.
            further: (days, columns) values that are observed besides the nine features, by their forms.
            portfolio: to trade in, of the investable columns first; default: one on the CPU, beside equal parts.
        """
        super().__init__()
        if data_array.ndim != 3 or data_array.shape[2] != NUM_FEATURES or len(dates) != len(data_array):
            raise ValueError(
                f"expected data_array (days, columns, {NUM_FEATURES}) and one date a day, got {data_array.shape} and "
                f"{len(dates)} dates; take both from a prepared StockDataLoader"
            )
        total = data_array.shape[1]
        columns = np.arange(total) if investable_columns is None else np.asarray(investable_columns)
        if not 0 < columns.size == len({*columns.tolist()} & {*range(total)}):
            raise ValueError(f"expected investable_columns to be distinct columns 0..{total - 1}, got {columns}")
        self.rules = rules or EnvironmentConfig()
        self.episode_rewards: list[float] = []
        """Of the episode so far, where it has one window; until its history is cleared."""
        self.episode_actions: list[Float32Array] = []
        """(investable,) each, as the rewards."""
        self._final_summary: dict[str, Any] | None = None  # the summary of an episode whose history is cleared
        self.dates = dates
        self._data_array, self._stats, self._input_clip = data_array, normalization_stats, input_clip
        self._further = further or {}
        self.feature_names = (*FEATURES, *(feature.name for feature in self._further))
        """Names of the features of `market` in an observation."""
        self.tickers = [str(column) if tickers is None else tickers[column] for column in columns.tolist()]
        """Of the investable columns."""

        if portfolio is None:
            bars = (data_array[..., OPEN], data_array[..., CLOSE], *([] if volume is None else [volume]))
            portfolio = Portfolio(Quotes.of(*(torch.from_numpy(values[:, columns]) for values in bars)), self.rules)
        self.portfolio = portfolio
        """The batched account, which knows the trading rules, beside that of the benchmark."""
        self._date_words = dates.astype(str)
        self._set_window(start_idx, end_idx, trading_end_idx)
        stocks = len(columns)
        shapes = {"portfolio": (stocks, STOCK_FEATURES), "account": (ACCOUNT_FEATURES,)}
        spaces = {name: gym.spaces.Box(-np.inf, np.inf, shape, np.float32) for name, shape in shapes.items()}
        market = gym.spaces.Box(-input_clip, input_clip, (total, len(self.feature_names)), np.float32)
        self.observation_space = gym.spaces.Dict({"market": market, **spaces})  # type: ignore[assignment]
        self.action_space = gym.spaces.Box(0.0, 1.0, (stocks,), np.float32)

    @classmethod
    def on(
        cls,
        market: Market,
        rules: EnvironmentConfig,
        device: torch.device | str = "cpu",
        portfolio: Portfolio | None = None,
    ) -> Self:
        """Trade the investable stocks of a market, at first from its training days, in a portfolio on the market."""
        return cls(
            market.data_array,
            market.dates,
            market.stats,
            **windows_from(market.splits.train.first, rules),
            investable_columns=market.investable_columns,
            tickers=market.tickers,
            rules=rules,
            input_clip=market.input_clip,
            further=observed_columns(market),
            portfolio=portfolio or Portfolio.on(market, rules, device),
        )

    def twin(self) -> Self:
        """Return another environment on the same data, with accounts of its own."""
        other = copy(self)
        other.portfolio = self.portfolio.under()
        return other

    @property
    def account(self) -> Account:
        """The account of its lanes."""
        return self.portfolio.account

    @cached_property
    def _features(self) -> Float32Array:
        """The observed features of all days, computed once something is observed."""
        nine = observed_features(self._data_array, self._stats, self._input_clip)
        if not self._further:
            return nine
        close = self._data_array[..., CLOSE]
        further = [feature.of(FeatureValues(values, close))[..., None] for feature, values in self._further.items()]
        return np.concatenate((nine, *further), axis=2).clip(-self._input_clip, self._input_clip)

    def _set_window(self, start_idx: Days, end_idx: Days, trading_end_idx: Days) -> None:
        given = (start_idx, trading_end_idx, end_idx)
        days = [day.cpu().numpy() if isinstance(day, Tensor) else np.asarray(day) for day in given]
        window = np.stack(np.broadcast_arrays(*days))
        if not _are_windows(window, len(self.dates)):
            raise ValueError(
                f"expected 0 <= start_idx < trading_end_idx <= end_idx < {len(self.dates)} days, equally far apart in "
                f"all lanes, got start_idx={start_idx!r}, trading_end_idx={trading_end_idx!r}, end_idx={end_idx!r}"
            )
        self.start_idx, self.end_idx, self.trading_end_idx = start_idx, end_idx, trading_end_idx
        self._is_batched = window.ndim == 2
        self._start, trading_end, end = torch.from_numpy(window.astype(np.int64)).view(3, -1)
        self._lengths: dict[str, Any] = {
            "steps": int(end[0] - self._start[0]),
            "trading_steps": int(trading_end[0] - self._start[0]),
        }

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        start_idx: Optional[Days] = None,  # noqa: UP045 - older notes look for this spelling
        end_idx: Days | None = None,
        trading_end_idx: Days | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with cash only, on the given window or on the last one.

        Args:
            options: may hold `start_idx`, `end_idx` and `trading_end_idx` too, for wrappers that pass only options.
            start_idx: first day to observe; one number, or an array of equally long windows, traded as lanes.
            end_idx: last day of the episode, on which everything is sold.
            trading_end_idx: something may be bought by decisions before this day.
        """
        super().reset(seed=seed)
        window = {"start_idx": self.start_idx, "end_idx": self.end_idx, "trading_end_idx": self.trading_end_idx}
        given = {"start_idx": start_idx, "end_idx": end_idx, "trading_end_idx": trading_end_idx}
        for source in (options or {}, given):
            window |= {name: day for name, day in source.items() if name in window and day is not None}
        self._set_window(**window)
        self.portfolio.begin(self._start, **self._lengths, is_flat_at_end=True, keeps_trades=True)
        self._clear()
        return self._observe()

    @torch.inference_mode()
    def step(self, action: Float32Array) -> tuple[Observation, Any, Any, Any, dict[str, Any]]:
        """Decide at today's close, live through tomorrow, observe its close.

        Returns:
            Observation, reward (float), terminated, truncated (bool), info; of lanes (lanes,) arrays each.

        Raises:
            ValueError: the action has the wrong shape, or an infinite weight.
        """
        self._require_reset()
        action = np.array(action, dtype=np.float32)
        stocks = len(self.tickers)
        shape = (self.account.lanes, stocks) if self._is_batched else (stocks,)
        if action.shape != shape or np.isinf(action).any():
            got = action.shape if action.shape != shape else "an infinite one"
            raise ValueError(f"expected weights of shape {shape}, none infinite, got {got}")
        asked = torch.from_numpy(action if self._is_batched else action[None]).to(self.account.device).double()
        asked = asked.clamp(min=0.0)
        target = asked / asked.nan_to_num().sum(1, keepdim=True).clamp(min=1.0)
        reward = self._of_lanes(self.portfolio.trade(target))
        observation, info = self._observe()
        terminated = self.account.is_done
        if self._is_batched:
            return observation, reward, np.full(len(reward), terminated), np.zeros(len(reward), dtype=bool), info
        self.episode_actions.append(action)
        self.episode_rewards.append(reward.item())
        return observation, reward.item(), terminated, False, info

    def _of_lanes(self, values: Tensor) -> NDArray[Any]:
        """Return (lanes, ...) values, or those of the only lane."""
        array: NDArray[Any] = values.cpu().numpy()
        return array if self._is_batched else array[0]

    def _told(self, name: str, value: Any) -> Any:
        """Return what is told of a sum: of the only lane a number, of lanes what there is."""
        return value if self._is_batched else int(value) if name in COUNTS else value.item()

    def _observe(self) -> tuple[Observation, dict[str, Any]]:
        account, rules = self.account, self.rules
        day, investable = self._of_lanes(account.day), len(self.tickers)
        stocks = (
            account.weights,
            self.portfolio.held,
            self.portfolio.wanted,
            account.unrealised,
            account.age / account.steps,
            (account.missing / rules.max_days_without_bar).clamp(max=1.0),
        )
        cash = account.cash / account.equity
        used = torch.zeros_like(cash)
        if rules.drawdown_lock > 0:
            used = torch.where(account.is_locked, 1.0, 100 * (1 - account.equity / account.peak) / rules.drawdown_lock)
        left = torch.full_like(cash, max(0, account.trading_steps - account.step_index) / max(1, account.trading_steps))
        # Copies: a caller may write into an observation.
        observation = Observation(
            market=self._features[day] if self._is_batched else self._features[day].copy(),
            portfolio=self._of_lanes(torch.stack([one[:, :investable].double() for one in stocks], dim=-1).float()),
            account=self._of_lanes(torch.stack((cash, 1 - cash, used, left), dim=-1).float()),
        )
        facts = {"day_index": day, "date": self._date_words[day]}
        facts |= {"cash": self._of_lanes(account.cash), "equity": self._of_lanes(account.equity)}
        facts = {name: value.copy() if self._is_batched else value.item() for name, value in facts.items()}
        return observation, {
            **facts,
            "can_buy": account.is_trading,
            "has_bar": self._of_lanes(account.has_bar[:, :investable]),
        }

    def get_episode_summary(self) -> dict[str, Any]:
        """Sum up the episode so far, see `environment.account.Summary`; once it is over its history is cleared, but not
        the sums. Profit over the benchmark is in `excess_percent`."""
        self._require_reset()
        if self._final_summary is not None:
            return dict(self._final_summary)
        summary = self.account.summary()
        excess = summary.profit_percent - self.portfolio.benchmark.summary().profit_percent
        sums = {**vars(summary), "excess_percent": excess}
        totals: dict[str, Any] = {name: self._of_lanes(values) for name, values in sums.items()}
        totals["win_rate"] = totals["wins"] / np.maximum(totals["trades"], 1)
        totals = {name: self._told(name, value) for name, value in totals.items()}
        if self.account.is_done:
            self._clear(totals)
        return dict(totals)

    def _clear(self, told: dict[str, Any] | None = None) -> None:
        """Forget the episode except its summary; the lists are new, since a twin may share the old ones."""
        self.episode_rewards, self.episode_actions, self._final_summary = [], [], told

    @property
    def current_idx(self) -> Days:
        """The day that is observed now; of lanes (lanes,) days."""
        self._require_reset()
        day = self._of_lanes(self.account.day)
        return day.copy() if self._is_batched else int(day)

    @property
    def open_positions(self) -> dict[str, dict[str, Any]]:
        """What the (first) lane holds, by ticker: shares, weight, unrealised return and sessions held."""
        self._require_reset()
        account = self.account
        told = {
            "shares": account.shares,
            "weight": account.weights,
            "unrealised_return": account.unrealised,
            "sessions": account.age,
        }
        # Stocks that only the benchmark holds come last, and have no ticker here.
        rows = zip(self.tickers, *(values[0].tolist() for values in told.values()), strict=False)
        return {ticker: dict(zip(told, values, strict=True)) for ticker, *values in rows if values[0] != 0}

    def get_trades(self, lane: int = 0) -> list[dict[str, Any]]:
        """List the positions of the episode so far, from first purchase to last sale, see
        `environment.position_history`.

        Raises:
            RuntimeError: `get_episode_summary` has cleared those of the finished episode.
        """
        self._require_reset()
        if self._final_summary is not None:
            raise RuntimeError("get_episode_summary has cleared the trades of the episode; call get_trades before it")
        if self.account.step_index == 0:
            return []
        return positions(
            self.account.trades(),
            lane,
            int(self._start[lane]),
            self.rules.cost_rate,
            fills_at_close=self.rules.fill == "same_close",
            is_flat_at_end=self.account.is_done,
        )

    def _require_reset(self) -> None:
        if not self.account.lanes:
            raise RuntimeError("the episode has not begun; call reset first")


def _are_windows(window: NDArray[Any], days: int) -> bool:
    """Tell whether (3,) or (3, lanes) first days, ends of trading and last days are windows of one length."""
    if not np.issubdtype(window.dtype, np.integer) or window.ndim > 2 or not window.size:
        return False
    start, trading_end, end = window
    in_order = (start >= 0) & (start < trading_end) & (trading_end <= end) & (end < days)
    return bool(in_order.all() and np.ptp(end - start) == np.ptp(trading_end - start) == 0)


def windows_from(first: Days, rules: EnvironmentConfig) -> dict[str, Any]:
    """Return what `reset` takes for windows of the rules' length from a first day, or from these (lanes,) days."""
    return {"start_idx": first, "end_idx": first + rules.episode_steps, "trading_end_idx": first + rules.trading_days}

"""The trading environment: a batched account with the interface of a Gymnasium environment.

Fills and rewards are those of the account, `environment/portfolio.py`, exits in `environment/exits.py`.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields
from functools import cached_property
from typing import Any, Optional, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.inputs import FeatureInput, FeatureValues, observed_columns
from data.features.nine import CLOSE, FEATURES, NUM_FEATURES, NormalizationStats, observed_features
from data.market import Market
from environment.ledger import EXIT_REASONS, Bars
from environment.portfolio import Portfolio
from environment.trading_rules import Orders
from utils.config.trader import EnvironmentConfig
from utils.memory.living import counted
from utils.spaces import ACCOUNT_FEATURES, MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

Days = int | NDArray[np.int64] | Tensor
"""A day, or one for each lane."""
_PORTFOLIO_COLUMNS = 4
"""The first position features: held, days held / maximum, unrealised return, size / maximum."""


class Observation(dict[str, NDArray[np.float32]]):
    """What is observed of a day, by name, see `TradingEnvironment`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its market slice, which is the largest part of it."""
        return self["market"].shape


@counted("environments")
class TradingEnvironment(gym.Env[Observation, NDArray[np.float32]]):
    """A batched trading account with the interface of a Gymnasium environment; one object serves every episode.

    Reset to one window it is a Gymnasium environment. Reset to arrays of windows it trades them in lockstep, as lanes:
    observations, actions, rewards and infos then have a leading dimension of lanes.

    Observation of day d, everything up to and including its close:
        `market` (columns, features): today's normalised features, named in `feature_names`: the nine, and the further
        columns of the data as ranks of the day, or against their own past where all stocks share them; `portfolio`
        (investable, 4): held, days held / maximum, unrealised return, size / maximum size; `exits` (investable, 2):
        distance to the sale target, sessions without a bar / maximum; `account` (3,): cash and exposure as fractions of
        the initial capital, days left on which orders are accepted as a fraction of the rules' trading days; with a
        drawdown lock also the part of the allowed drawdown that is used.
    Action (investable, 2): coefficient in [0, 10] (below 1: no order; with daily exits a held stock is sold), sale
    target in [10, 50] percent.
    Reward: change of equity in percent of the initial capital, less the configured penalties.
    An episode terminates on day `end_idx`, when every position has been closed; it is never truncated.

    The agents of this program decide by the account, the open positions and forecasts of every order. Forecasts depend
    on the day only: they are computed once for all days from the inputs that `models/inputs.py` makes of the same data,
    and looked up by the info's `day_index` (see `models.ddpg_agent.DDPGAgent.act`). Populations are played without
    leaving the device: `reset` with `observe=False`, then steps by `Orders`; what they read is in `account`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(
        self,
        data_array: NDArray[np.float32],
        dates: NDArray[np.datetime64],
        normalization_stats: NormalizationStats,
        start_idx: Days,
        end_idx: Days,
        trading_end_idx: Days,
        *,
        investable_columns: Sequence[int] | NDArray[np.int64] | None = None,
        rules: EnvironmentConfig | None = None,
        input_clip: float = 8.0,
        volume: NDArray[np.float32] | None = None,
        further: Mapping[FeatureInput, NDArray[np.float32]] | None = None,
        device: torch.device | str = "cpu",
        account: Portfolio | None = None,
    ) -> None:
        """Trade `investable_columns` (default: all) of the data.

        Args:
            volume: (days, columns), for a volume cap only.
            further: (days, columns) values that are observed besides the nine features, by their forms.
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
        """Of the episode so far, where it has one window and is stepped by actions; until its history is cleared."""
        self.episode_actions: list[NDArray[np.float32]] = []
        """(investable, 2) each, as the rewards."""
        self._final_summary: dict[str, Any] | None = None  # the summary of an episode whose history is cleared
        self.dates = dates
        self._data_array, self._stats, self._input_clip = data_array, normalization_stats, input_clip
        self._further = further or {}
        self.feature_names = (*FEATURES, *(feature.name for feature in self._further))
        """Names of the features of `market` in an observation."""
        self.account = account or Portfolio(Bars.of(data_array, columns, device, volume, self.rules), self.rules)
        """The batched account, which knows the trading rules."""
        self._date_words = dates.astype(str)
        self._set_window(start_idx, end_idx, trading_end_idx)
        stocks, features = len(columns), ACCOUNT_FEATURES + (self.rules.drawdown_lock > 0)
        shapes = {"portfolio": (stocks, _PORTFOLIO_COLUMNS), "exits": (stocks, 2), "account": (features,)}
        spaces = {name: gym.spaces.Box(-np.inf, np.inf, shape, np.float32) for name, shape in shapes.items()}
        market = gym.spaces.Box(-input_clip, input_clip, (total, len(self.feature_names)), np.float32)
        self.observation_space = gym.spaces.Dict({"market": market, **spaces})  # type: ignore[assignment]
        low = np.tile(np.array((0.0, MIN_TARGET_PERCENT), np.float32), (stocks, 1))
        high = np.tile(np.array((MAX_COEFFICIENT, MAX_TARGET_PERCENT), np.float32), (stocks, 1))
        self.action_space = gym.spaces.Box(low, high, dtype=np.float32)

    @classmethod
    def on(
        cls,
        market: Market,
        rules: EnvironmentConfig,
        device: torch.device | str = "cpu",
        account: Portfolio | None = None,
    ) -> Self:
        """Trade the investable stocks of a market, with an account if there is one, at first from its training days."""
        return cls(
            market.data_array,
            market.dates,
            market.stats,
            **windows_from(market.splits.train.first, rules),
            investable_columns=market.investable_columns,
            rules=rules,
            input_clip=market.input_clip,
            volume=market.volume,
            further=observed_columns(market),
            device=device,
            account=account,
        )

    def twin(self) -> Self:
        """Return another environment on the same data, with an account of its own."""
        other = copy(self)
        other.account = Portfolio(self.account.bars, self.rules)
        return other

    @cached_property
    def _features(self) -> NDArray[np.float32]:
        """The observed features of all days, computed once something is observed."""
        nine = observed_features(self._data_array, self._stats, self._input_clip)[..., :NUM_FEATURES]
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
        self._steps = int(end[0] - self._start[0])
        self._trading_steps = int(trading_end[0] - self._start[0])

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        start_idx: Optional[Days] = None,  # noqa: UP045 - older notes look for this spelling
        end_idx: Days | None = None,
        trading_end_idx: Days | None = None,
        observe: bool = True,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with cash only, on the given window or on the last one.

        Args:
            options: may hold `start_idx`, `end_idx` and `trading_end_idx` too, for wrappers that pass only options.
            start_idx: first day to observe; one number, or an array of equally long windows, traded as lanes.
            end_idx: last day of the episode, on which every position is closed.
            trading_end_idx: orders are accepted before this day.
            observe: without it observation and info are empty, for policies that read `account`.
        """
        super().reset(seed=seed)
        window = {"start_idx": self.start_idx, "end_idx": self.end_idx, "trading_end_idx": self.trading_end_idx}
        given = {"start_idx": start_idx, "end_idx": end_idx, "trading_end_idx": trading_end_idx}
        for source in (options or {}, given):
            window |= {name: day for name, day in source.items() if name in window and day is not None}
        self._set_window(**window)
        self.account.reset(self._start, steps=self._steps, trading_steps=self._trading_steps)
        self._clear()
        return self._observe() if observe else (Observation(), {})

    def step(self, action: NDArray[np.float32] | Orders | None) -> tuple[Observation, Any, Any, Any, dict[str, Any]]:
        """Decide at today's close, live through tomorrow, observe its close.

        Args:
            action: as the action space says; or the orders that such actions come to, or None, which orders nothing:
                then nothing leaves the device, and observation and info are empty.

        Returns:
            Observation, reward (float), terminated, truncated (bool), info; of lanes stepped by actions (lanes,) arrays
            each; where nothing leaves the device the reward is a tensor of the lanes.

        Raises:
            ValueError: the action has the wrong shape or is not finite.
        """
        self._require_reset()
        if action is None or isinstance(action, Orders):
            self.account.step_orders(action)
            return Observation(), self.account.reward, self.account.is_done, False, {}
        action = np.array(action, dtype=np.float32)
        assert self.action_space.shape is not None
        shape = (self.account.lanes, *self.action_space.shape) if self._is_batched else self.action_space.shape
        if action.shape != shape or not np.isfinite(action).all():
            is_finite = bool(np.isfinite(action).all())
            raise ValueError(f"expected a finite action of shape {shape}, got {action.shape}, finite: {is_finite}")
        # No tensor of a step is ever part of a graph of gradients.
        with torch.inference_mode():
            orders = torch.from_numpy(action if self._is_batched else action[None]).to(self.account.device)
            reward = self._of_lanes(self.account.step(orders))
            observation, info = self._observe()
        terminated, truncated = self.account.is_done, False
        if self._is_batched:
            return observation, reward, np.full(len(reward), terminated), np.full(len(reward), truncated), info
        self.episode_actions.append(action)
        self.episode_rewards.append(reward.item())
        return observation, reward.item(), terminated, truncated, info

    def _of_lanes(self, values: Tensor) -> NDArray[Any]:
        """Return (lanes, ...) values, or those of the only lane."""
        array: NDArray[Any] = values.cpu().numpy()
        return array if self._is_batched else array[0]

    def _observe(self) -> tuple[Observation, dict[str, Any]]:
        account = self.account
        day = self._of_lanes(account.day)
        # Copies: a caller may write into an observation.
        positions = self._of_lanes(account.position_features())
        observation = Observation(
            market=self._features[day] if self._is_batched else self._features[day].copy(),
            portfolio=positions[..., :_PORTFOLIO_COLUMNS],
            exits=positions[..., _PORTFOLIO_COLUMNS:],
            account=self._of_lanes(account.account_features()),
        )
        cash, equity = self._of_lanes(account.cash), self._of_lanes(account.equity)
        facts = {"day_index": day, "date": self._date_words[day], "cash": cash, "equity": equity}
        return observation, {
            **{name: value.copy() if self._is_batched else value.item() for name, value in facts.items()},
            "can_order": account.is_trading,
            "candidates": self._of_lanes(account.candidates()),
        }

    def get_episode_summary(self) -> dict[str, Any]:
        """Sum up the episode so far, see `EpisodeSummary`; once it is over its history is cleared, but not the sums."""
        self._require_reset()
        if self._final_summary is not None:
            return dict(self._final_summary)
        summary = self.account.summary()
        totals: dict[str, Any] = {f.name: self._of_lanes(getattr(summary, f.name)) for f in fields(summary)}
        totals["win_rate"] = totals["wins"] / np.maximum(totals["trades"], 1)
        totals = totals if self._is_batched else {name: value.item() for name, value in totals.items()}
        if self.account.is_done:
            self.account.clear_history()
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
    def open_positions(self) -> list[dict[str, Any]]:
        """The open positions, as `get_trades` has them, of all lanes one after the other."""
        self._require_reset()
        trades = (trade for lane in range(self.account.lanes) for trade in trade_ledger(self.account, lane))
        return [trade for trade in trades if trade["exit_day"] is None]

    def get_trades(self, lane: int = 0) -> list[dict[str, Any]]:
        """List the trades of the episode so far, in the order of the decisions; open positions have no exit.

        Raises:
            RuntimeError: `get_episode_summary` has cleared those of the finished episode.
        """
        self._require_reset()
        if self._final_summary is not None:
            raise RuntimeError("get_episode_summary has cleared the trades of the episode; call get_trades before it")
        return trade_ledger(self.account, lane)

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

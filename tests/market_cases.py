"""Random markets, orders and rules with everything in them that goes wrong in real prices."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tests.environment.oracle import Bar, Result, simulate
from utils.arrays import Float32Array
from utils.config.trader import EnvironmentConfig


@dataclass(frozen=True)
class MarketCase:
    """An episode to play: prices, orders, its days and its rules.

    `data` is (days, stocks, 4): open, high, low, close, NaN where there is no bar. `orders` is (steps, stocks, 2):
    coefficient, target percent. Step t decides on day start + t, end = start + steps.
    """

    data: Float32Array
    orders: Float32Array
    start: int
    end: int
    trading_end: int
    rules: EnvironmentConfig
    volume: Float32Array | None = None
    """(days, stocks) shares traded, in places unknown: NaN, infinite or negative."""

    @property
    def expected(self) -> Result:
        return simulate(
            to_bars(self.data),
            [{stock: (pair[0], pair[1]) for stock, pair in enumerate(row)} for row in self.orders.tolist()],
            start=self.start,
            end=self.end,
            trading_end=self.trading_end,
            rules=self.rules,
            volumes=to_volumes(self.volume),
        )


def random_panel(
    rng: np.random.Generator,
    days: int,
    stocks: int,
    *,
    missing: float = 0.03,
    delist: float = 0.1,
    late_start: float = 0.15,
    halt: float = 0.2,
    gap: float = 0.015,
    jump: float = 0.03,
    tick: float | None = None,
) -> Float32Array:
    """Prices (days, stocks, 4) float32, open, high, low, close, with rows of NaN where a stock has no bar.

    `missing` is the share of single days without a bar; `delist`, `late_start` and `halt` are the shares of stocks that
    end early, start late and stop trading for 6 to 12 days; `gap` is the standard deviation of overnight returns and
    `jump` the share of sessions (each of open and close) with a move of up to a third. Prices are rounded to multiples
    of `tick`, so that targets are also met exactly.
    """
    overnight = _moves(rng, days, stocks, gap, jump)
    intraday = _moves(rng, days, stocks, 0.02, jump)
    first = np.log(rng.uniform(5, 200, stocks))
    close = first + np.cumsum(overnight + intraday, axis=0)
    open_ = close - intraday
    high = np.maximum(open_, close) + _wick(rng, days, stocks)
    low = np.minimum(open_, close) - _wick(rng, days, stocks)
    prices = np.exp(np.clip(np.stack([open_, high, low, close], axis=-1), -2, 10))
    if tick is not None:
        prices = np.maximum(np.round(prices / tick), 1) * tick
    panel: Float32Array = prices.astype(np.float32)
    panel[~_has_bar(rng, days, stocks, missing, delist, late_start, halt)] = np.nan
    return panel


def _moves(rng: np.random.Generator, days: int, stocks: int, spread: float, jump: float) -> npt.NDArray[np.float64]:
    jumps = rng.uniform(-0.3, 0.35, (days, stocks)) * (rng.random((days, stocks)) < jump)
    moves: npt.NDArray[np.float64] = rng.normal(0.001, spread, (days, stocks)) + jumps
    return moves


def _wick(rng: np.random.Generator, days: int, stocks: int) -> npt.NDArray[np.float64]:
    # A quarter of the bars have no wick, so that highs equal opens or closes.
    wick: npt.NDArray[np.float64] = rng.exponential(0.01, (days, stocks)) * (rng.random((days, stocks)) < 0.75)
    return wick


def _has_bar(
    rng: np.random.Generator, days: int, stocks: int, missing: float, delist: float, late_start: float, halt: float
) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = rng.random((days, stocks)) >= missing
    for stock in range(stocks):
        if rng.random() < late_start:
            present[: rng.integers(1, days), stock] = False
        if rng.random() < delist:
            present[rng.integers(1, days) :, stock] = False
        if rng.random() < halt:
            first = rng.integers(0, days)
            present[first : first + rng.integers(6, 13), stock] = False
    return present


def random_volume(rng: np.random.Generator, data: Float32Array, money: float) -> Float32Array:
    """Shares traded (days, stocks) float32, mostly worth about so much `money`; some unknown, some 0."""
    volume = money / np.where(np.isnan(data[..., 3]), 1.0, data[..., 3]) * rng.lognormal(0, 1, data.shape[:2])
    odd = rng.choice([np.nan, np.inf, -1.0, 0.0], data.shape[:2])
    return np.where(rng.random(data.shape[:2]) < 0.2, odd, volume).astype(np.float32)


def random_orders(rng: np.random.Generator, steps: int, stocks: int, *, busy: float = 0.3) -> Float32Array:
    """Orders (steps, stocks, 2) float32: coefficients, of which a share `busy` reach 1, and target percents.

    Coefficients are often tied or at the border of 1; some, and some targets, lie outside their ranges.
    """
    shape = (steps, stocks)
    below = rng.choice([-3.0, 0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))], shape)
    below = np.where(rng.random(shape) < 0.5, below, rng.uniform(-1, 0.999, shape))
    above = rng.choice([1.0, 2.0, 5.0, 10.0, 12.0, 400.0], shape)
    above = np.where(rng.random(shape) < 0.5, above, rng.uniform(1, 10, shape))
    coefficients = np.where(rng.random(shape) < busy, above, below)
    targets = rng.choice([-5.0, 0.0, 9.99, 10.0, 12.5, 25.0, 50.0, 50.01, 1000.0], shape)
    targets = np.where(rng.random(shape) < 0.5, targets, rng.uniform(10, 50, shape))
    return np.stack([coefficients, targets], axis=-1).astype(np.float32)


def to_bars(data: Float32Array) -> list[list[Bar | None]]:
    """The panel as `bars[day][stock]`, Python floats or None."""
    return [[_bar(prices) for prices in row] for row in data.tolist()]


def to_volumes(volume: Float32Array | None) -> list[list[float | None]]:
    """Volumes as `volumes[day][stock]`, Python floats or None where not known."""
    rows = [] if volume is None else volume.tolist()
    return [[shares if 0 <= shares < float("inf") else None for shares in row] for row in rows]


def _bar(prices: list[float]) -> Bar | None:
    open_, high, low, close = prices
    return None if any(price != price for price in prices) else (open_, high, low, close)


@st.composite
def environment_rules(draw: st.DrawFn, trading_days: int = 125, settlement_days: int = 20) -> EnvironmentConfig:
    """Trading rules of every kind, for an episode of the given length."""
    return EnvironmentConfig(
        trading_days=trading_days,
        settlement_days=settlement_days,
        initial_capital=draw(st.sampled_from([1_000_000.0, 1000.0])),
        # At 20 percent and more a few orders exhaust the cash.
        stake_percent=draw(st.sampled_from([1.0, 5.0, 20.0, 100.0])),
        max_new_positions_per_day=draw(st.integers(1, 4)),
        exits=draw(st.sampled_from(["daily", "target"])),
        max_holding_days=draw(st.integers(0, 25)),
        max_days_without_bar=draw(st.integers(1, 7)),
        delisting_loss=draw(st.sampled_from([0.0, 30.0, 100.0])),
        cost_bps=draw(st.sampled_from([5.0, 0.0, 80.0])),
        slippage_bps=draw(st.sampled_from([5.0, 0.0])),
        fill=draw(st.sampled_from(["next_open", "same_close"])),
        stop_percent=draw(st.sampled_from([0.0, 3.0, 12.5, 50.0])),
        drawdown_lock=draw(st.sampled_from([0.0, 1.0, 10.0])),
        inaction_penalty=draw(st.sampled_from([0.0, 0.25])),
        loss_multiplier=draw(st.sampled_from([1.0, 1.5])),
        zero_trades_penalty=draw(st.sampled_from([1.0, 0.0])),
    )


@st.composite
def market_cases(draw: st.DrawFn, max_steps: int = 60, max_stocks: int = 8) -> MarketCase:
    """Episodes over random panels that start and end anywhere in them; prices and orders come from a drawn seed."""
    steps, stocks = draw(st.integers(1, max_steps)), draw(st.integers(1, max_stocks))
    start, after = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    trading_days = draw(st.integers(1, steps))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tick = draw(st.sampled_from([None, 0.125]))
    missing = draw(st.sampled_from([0.03, 0.0, 0.3]))
    data = random_panel(rng, start + steps + 1 + after, stocks, missing=missing, tick=tick)
    orders = random_orders(rng, steps, stocks, busy=draw(st.sampled_from([0.3, 0.02, 0.9])))
    rules = draw(environment_rules(trading_days=trading_days, settlement_days=steps - trading_days))
    cap = draw(st.sampled_from([0.0, 2.5, 100.0]))
    # Half of the orders of about four stakes are cut.
    volume = random_volume(rng, data, 4 * rules.stake * 100 / cap) if cap > 0 else None
    rules = replace(rules, volume_cap=cap)
    return MarketCase(data, orders, start, start + steps, start + trading_days, rules, volume)

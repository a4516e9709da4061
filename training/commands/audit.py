"""The command `audit`: what is seen and decided on a day must not change with the data of later days, bit for bit."""

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.bars import VOLUME
from data.features.nine import PRICES, NormalizationStats
from data.loader import StockDataLoader
from data.market import Market, span_of
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from training.commands.table import AuditArguments
from training.run.market import require_past_columns
from training.run.saved import SavedRun, open_saved_run
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import DataError, LookAheadError
from utils.progress import progress
from utils.runs.devices import choose_threads

logger = logging.getLogger(__name__)
Array = NDArray[Any]
Draws = np.random.Generator
Future = Callable[[Array, Array | None, Draws], None]
"""Changes later prices (days, columns, 4) and volume (days, columns) in place."""
Known = dict[str, tuple[int, Array]]
"""By name the first day and the (days, ...) values."""
_NAMES = ("open", "close", "high", "low")
"""Of `PRICES`, in their order."""
GAPS = 0.1
"""Share of the bars that are taken out."""
_IMPOSSIBLE = (-np.inf, -1.0, 0.0, np.inf)


def cut(prices: Array, volume: Array | None, _: Draws) -> None:
    """Remove all later bars."""
    prices[:] = np.nan


def poisoned(prices: Array, volume: Array | None, draws: Draws) -> None:
    """Replace all later bars by noise: some are gone, some are new, some have impossible prices."""
    bars = prices.shape[:2]
    prices[:] = np.exp(draws.uniform(-6, 12, bars))[..., None] * np.exp(0.1 * draws.standard_normal(prices.shape))
    prices[draws.random(bars) < 0.3] = np.nan
    is_impossible = draws.random(prices.shape) < 0.01
    prices[is_impossible] = draws.choice(_IMPOSSIBLE, int(is_impossible.sum()))
    if volume is not None:
        volume[:] = np.exp(draws.uniform(0, 20, bars))


def scaled(prices: Array, volume: Array | None, draws: Draws) -> None:
    """Multiply all later bars of each column by a factor, as a split or another currency would."""
    factor = np.exp(draws.uniform(-3, 3, prices.shape[1])).astype(prices.dtype)
    prices *= factor[:, None]
    if volume is not None:
        volume /= factor


FUTURES: tuple[Future, ...] = (cut, poisoned, scaled)


def run_audit(arguments: AuditArguments) -> None:
    """Audit a run's champion on random days.

    Raises:
        ConfigError, DataError: the run or its data cannot be used.
        LookAheadError: something known on a day changed with later data.
    """
    choose_threads(arguments.threads)
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data)
    require_past_columns(run.market)
    loading = logging.getLogger("data.loader")
    level = loading.level
    loading.setLevel(logging.ERROR)  # of changed data nobody need be warned
    try:
        futures = audit(run, arguments.days, np.random.default_rng(run.config.seed))
    finally:
        loading.setLevel(level)
    logger.info(
        "run %s, champion of generation %d: features, forecasts, observations and orders up to %d random days are "
        "equal bit for bit with all later data cut, poisoned and scaled; %d futures",
        run.path,
        run.generation,
        arguments.days,
        futures,
    )


def audit(run: SavedRun, days: int, draws: Draws) -> int:
    """Compare what is known on random days with and without changed data of later days; return how many were changed.

    The loader reads the bars anew each time, and the champion's agents play an episode up to the day. On every second
    day random bars are taken out first, for a backward fill reads the future only where there are gaps.

    Raises:
        LookAheadError: the first difference.
    """
    market, rules = run.market, run.config.env
    first, last = market.splits.train.first, len(market.dates) - 1 - rules.episode_steps
    if last < first:
        raise DataError(f"expected an episode of {rules.episode_steps} steps after {market.dates[first]}, got none")
    gone = draws.random(market.data_array.shape[:2]) < GAPS
    gappy = market.without(gone)
    agent, read = run.champion, [with_future(gappy), with_future(market)]
    for number in progress(range(days), "audit", "day"):
        audited, as_is = (gappy, market)[number % 2], read[number % 2]
        start = int(draws.integers(first, last + 1))
        day = start + int(draws.integers(rules.trading_days))
        known = known_on_day(agent, as_is, market.stats, start, day, rules)
        for future in FUTURES:
            changed = known_on_day(
                run.champion, with_future(audited, day, future, draws), market.stats, start, day, rules
            )
            _require_equal(known, changed, future.__name__, market, day)
    return days * len(FUTURES)


def with_future(
    market: Market, day: int | None = None, future: Future = lambda *_: None, draws: Draws | None = None
) -> Market:
    """Return a market as the loader reads it anew, with other data after a day.

    Days and tickers of which nothing is left keep their places.
    """
    prices, volume = market.data_array[..., list(PRICES)], None if market.volume is None else market.volume.copy()
    further = {name: values.copy() for name, values in market.columns.items()}
    if day is not None and draws is not None:
        future(prices[day + 1 :], None if volume is None else volume[day + 1 :], draws)
        for values in further.values():
            values[day + 1 :] = np.nan if future is cut else draws.standard_normal(values[day + 1 :].shape)
    row, column = np.nonzero(~np.isnan(prices).all(axis=2))
    bars = {name: prices[row, column, place] for place, name in enumerate(_NAMES)}
    if volume is not None:
        bars[VOLUME] = volume[row, column]
    bars |= {name: values[row, column] for name, values in further.items()}
    ticker = pd.Categorical.from_codes(column, market.tickers)
    frame = pd.DataFrame({"date": market.dates[row].astype("datetime64[s]"), "ticker": ticker, **bars})
    config = DataConfig(max_bad_row_share=0.999)
    loader = StockDataLoader.from_frame(frame, config=config, requires_volume=volume is not None)
    loader.load_and_prepare()
    place = {name: column for column, name in enumerate(market.tickers)}
    columns = np.array([place[name] for name in loader.tickers])
    cells = np.ix_(np.searchsorted(market.dates, loader.dates), columns)
    data_array = np.full_like(market.data_array, np.nan)
    data_array[cells] = loader.data_array
    if volume is not None and loader.volume is not None:
        volume[:] = np.nan
        volume[cells] = loader.volume
    for name, values in further.items():
        values[:] = np.nan
        values[cells] = loader.columns[name]
    loader.data_array, loader.dates = data_array, market.dates
    stats = loader.compute_normalization_stats(market.splits.train.last)
    return dataclasses.replace(market, data_array=data_array, stats=stats, volume=volume, columns=further)


def known_on_day(
    agent: DDPGAgent, market: Market, stats: NormalizationStats, start: int, day: int, rules: EnvironmentConfig
) -> Known:
    """Play an episode from `start`, observed by these statistics, up to a day; return what is known then."""
    last = start + rules.episode_steps
    env = TradingEnvironment.on(dataclasses.replace(span_of(market, 0, last), stats=stats), rules)
    forecasts, played = agent.forecasts(market, slice(start, last + 1)), defaultdict[str, list[Any]](list)
    observation, info = env.reset(start_idx=start, end_idx=last, trading_end_idx=start + rules.trading_days)
    while True:
        action = agent.act(observation, forecasts, info["day_index"])
        for name, value in {**{f"observed {n}": v for n, v in observation.items()}, **info, "orders": action}.items():
            played[name].append(value)
        if info["day_index"] == day:
            break
        observation, *_, info = env.step(action)
    known: Known = {"features": (0, market.data_array[: day + 1])}
    if day >= market.splits.train.last:
        known |= {f"normalisation {name}": (0, value[None]) for name, value in vars(market.stats).items()}
    for name, value in (("score", forecasts.score[0]), ("risk", forecasts.risk)):
        known[f"forecast {name}"] = start, value[start : day + 1].cpu().numpy()
    return known | {name: (start, np.stack(values)) for name, values in played.items()}


def _require_equal(known: Known, changed: Known, future: str, market: Market, day: int) -> None:
    """Raise LookAheadError for the first difference in a bit."""
    for name, (first, values) in known.items():
        one, other = (np.ascontiguousarray(part) for part in (values, changed[name][1]))
        if one.tobytes() == other.tobytes():
            continue
        bits = [part.view(np.uint8).reshape(*part.shape, -1) for part in (one, other)]
        place = tuple(np.argwhere((bits[0] != bits[1]).any(-1))[0])
        raise LookAheadError(
            f"expected what is known on {market.dates[day]} to stay with all later data {future}, but {name} of "
            f"{market.dates[first + place[0]]} was {one[place]} and became {other[place]}; it reads the future"
        )

"""The command `audit`: what is seen and decided on a day must not change with the data of later days, bit for bit."""

import dataclasses
import logging
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.bars import PRICE_COLUMNS
from data.features.nine import PRICES, NormalizationStats
from data.features.own import FUTURES, GAPS, with_future
from data.loader import StockDataLoader
from data.market import Market, days_up_to
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from training.commands.table import AuditArguments
from training.run.market import require_past_columns
from training.run.saved import SavedRun, open_saved_run
from utils.arrays import Float32Array
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import DataError, LookAheadError
from utils.progress import progress
from utils.runs.devices import choose_threads
from utils.tables import many

logger = logging.getLogger(__name__)
Array = NDArray[Any]
Known = dict[str, tuple[int, Array]]
"""By name the first day and the (days, ...) values."""
_IMPOSSIBLE = (-np.inf, -1.0, 0.0, np.inf)


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
        "run %s, champion of generation %d: features, forecasts, observations and orders up to %s are "
        "equal bit for bit with all later data cut off, poisoned and scaled; %s",
        run.path,
        run.generation,
        many(arguments.days, "random day"),
        many(futures, "future"),
    )


def audit(run: SavedRun, days: int, draws: np.random.Generator) -> int:
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
    agent, read = run.champion, [reloaded(gappy), reloaded(market)]
    for number in progress(range(days), "Auditing days", "day"):
        audited, as_is = (gappy, market)[number % 2], read[number % 2]
        start = int(draws.integers(first, last + 1))
        day = start + int(draws.integers(rules.trading_days))
        known = known_on_day(agent, as_is, market.stats, start, day, rules)
        for future in FUTURES:
            other = reloaded(with_future(audited, day, future, draws, _IMPOSSIBLE))
            changed = known_on_day(agent, other, market.stats, start, day, rules)
            _require_equal(known, changed, future, market, day)
    return days * len(FUTURES)


def reloaded(market: Market) -> Market:
    """Return a market as the loader reads its bars anew; days and tickers of which nothing is left stay, empty."""
    prices = market.data_array[..., list(PRICES)]
    row, column = np.nonzero(~np.isnan(prices).all(axis=2))
    bars = {name: prices[row, column, place] for place, name in enumerate(PRICE_COLUMNS)}
    bars |= {name: values[row, column] for name, values in market.extra_columns.items()}
    ticker = pd.Categorical.from_codes(column, market.tickers)
    frame = pd.DataFrame({"date": market.dates[row].astype("datetime64[s]"), "ticker": ticker, **bars})
    config = DataConfig(max_bad_row_share=0.999)
    loader = StockDataLoader.from_frame(frame, config=config, requires_volume=market.volume is not None)
    loader.load_and_prepare()
    place = {name: column for column, name in enumerate(market.tickers)}
    cells = np.ix_(np.searchsorted(market.dates, loader.dates), np.array([place[name] for name in loader.tickers]))

    def placed(values: Float32Array) -> Float32Array:
        whole = np.full((*market.data_array.shape[:2], *values.shape[2:]), np.nan, dtype=np.float32)
        whole[cells] = values
        return whole

    columns = {name: placed(loader.columns[name]) for name in market.columns}
    volume = None if loader.volume is None else placed(loader.volume)
    loader.data_array, loader.dates = placed(loader.data_array), market.dates
    stats = loader.compute_normalization_stats(market.splits.train.last)
    return dataclasses.replace(market, data_array=loader.data_array, stats=stats, volume=volume, columns=columns)


def known_on_day(
    agent: DDPGAgent, market: Market, stats: NormalizationStats, start: int, day: int, rules: EnvironmentConfig
) -> Known:
    """Play an episode from `start`, observed by these statistics, up to a day; return what is known then."""
    last = start + rules.episode_steps
    env = TradingEnvironment.on(dataclasses.replace(days_up_to(market, last), stats=stats), rules)
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

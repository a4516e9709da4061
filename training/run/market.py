"""The market of a run: loaded, recorded in the run's folder, and checked against the record."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data.features.own import audit_features, own_columns, read_features
from data.loader import StockDataLoader
from data.market import Market, build_market, with_features
from data.record import MARKET, MarketRecord, pin_market, read_record, record_market, sealed, split_market
from data.splits import Splits
from data.synthetic.built_in import PlantedScores, built_in_loader, planted_scores
from data.universe import read_index
from environment.benchmark import Benchmark
from training.forecasts.look_ahead import require_past
from utils.config.settings import read_json
from utils.config.trader import Config
from utils.errors import DataError
from utils.runs.run_log import CHECKPOINTS, write_json

logger = logging.getLogger(__name__)


def data_loader(config: Config, sessions: Sequence[str] = ()) -> StockDataLoader:
    """Return the loader of the data file, or of the built-in market.

    Args:
        sessions: see `StockDataLoader`.
    """
    if config.data is None:
        if config.investable is not None:
            raise DataError(
                "expected --data with --investable, got none; the built-in market says itself what may be bought"
            )
        return built_in_loader(config.synthetic, config.split)
    return StockDataLoader(
        config.data,
        config=config.split,
        investable=config.investable,
        requires_volume=config.env.volume_cap > 0,
        sessions=sessions,
    )


def load_market(config: Config, *, audits: bool = False, sessions: Sequence[str] = ()) -> Market:
    """Return the market of the data file, or the built-in one.

    Args:
        audits: look whether columns or own features hold data of the future.
        sessions: see `StockDataLoader`.
    """
    loader = data_loader(config, sessions)
    loader.load_and_prepare()
    return market_of(loader, config, audits=audits)


def benchmark_of(market: Market, config: Config) -> Benchmark:
    """Return the benchmark of a run, which is held where nothing is known."""
    return Benchmark.of(market, config.evaluation.benchmark_weights, config.seed)


def scores_of(config: Config) -> PlantedScores | None:
    """Return the scores of the structure that is planted in the built-in market; None for a data file."""
    return planted_scores(config.synthetic) if config.data is None else None


def market_of(loader: StockDataLoader, config: Config, *, audits: bool) -> Market:
    """Return the market of a loader that has loaded, with own features among its columns."""
    market = dataclasses.replace(build_market(loader, config.split, config.env), source=config.data)
    market = with_own_features(market, config.features, audits)
    if audits and config.data is not None:
        require_past_columns(market)
    return market


def market_of_run(loader: StockDataLoader, config: Config, path: Path, splits: Splits | None) -> Market:
    """Return the market of the run in `path`: audited and recorded where it is new, else as recorded.

    Args:
        splits: days of a new run, in place of the configured fractions.
    """
    market = market_of(loader, config, audits=not (path / MARKET).is_file())
    market = record_or_pin_market(path, market, splits)
    if config.evaluation.benchmark is not None:
        read_index(config.evaluation.benchmark, market.dates)  # refused now, not after the training
    return market


def with_own_features(market: Market, path: Path | None, audits: bool) -> Market:
    """Return the market with the features of a file among its columns.

    Raises:
        DataError: the file is unusable, or a feature looks ahead.
    """
    if path is None:
        return market
    functions, digest = read_features(path)
    if audits:
        logger.info("checking that %d own features of %s do not look ahead", len(functions), path.name)
        audit_features(functions, market, np.random.default_rng(0), lambda: read_features(path)[0])
    columns = {**market.columns, **own_columns(functions, market.wide())}
    own = dataclasses.replace(market, columns=columns, own_features=digest, own_names=tuple(functions))
    return with_features(own)


def require_past_columns(market: Market) -> None:
    """Raise LookAheadError where a column that agents read holds returns of the future, on training or validation days.

    Columns of volumes, and what is computed of bars, do not.
    """
    days, read = slice(market.splits.validation.last + 1), {feature.name for feature in market.features}
    values = {name: wide[days, market.investable_columns] for name, wide in market.columns.items() if name in read}
    require_past(values, market, days)


def record_or_pin_market(path: Path, market: Market, splits: Splits | None = None) -> Market:
    """Record the market of a new run in `path`; for an existing run return `market` as recorded.

    `splits` replace those by the configured fractions. Raises DataError where the run began on another market.
    """
    if (path / MARKET).is_file():
        return pin_market(market, read_market_record(path))
    if any((path / CHECKPOINTS).glob("*")):
        logger.warning("%s is gone, by which the data of the run are known: taken as they are now", path / MARKET)
    if splits is not None:
        market = split_market(market, splits)
    write_json(path / MARKET, sealed(record_market(market)))
    return market


def read_market_record(path: Path) -> MarketRecord:
    """Return the market record of the run in `path`. Raises DataError for a damaged one."""
    try:
        record = dict(read_json(path / MARKET))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"expected JSON in {path / MARKET}, got: {error}; restore it from a copy of the run") from None
    return read_record(record, str(path / MARKET))

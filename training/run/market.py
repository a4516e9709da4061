"""The market of a run: loaded, recorded in the run's folder, and checked against the record."""

import json
from pathlib import Path

from data.loader import StockDataLoader
from data.market import Market, build_market
from data.record import MARKET, MarketRecord, pin_market, read_record, record_market, sealed, split_market
from data.splits import Splits
from data.synthetic.built_in import PlantedScores, built_in_market
from utils.config.trader import Config
from utils.errors import DataError
from utils.runs.run_log import write_json


def load_market(config: Config) -> tuple[Market, PlantedScores | None]:
    """Return the market of the data file, or the built-in one with the scores of its planted structure."""
    if config.data is not None:
        loader = StockDataLoader(
            config.data, config=config.split, investable=config.investable, with_volume=config.env.volume_cap > 0
        )
        loader.load_and_prepare()
        return build_market(loader, config.split, config.env), None
    if config.investable is not None:
        raise DataError(
            "expected --data with --investable, got none; the built-in market says itself what may be bought"
        )
    return built_in_market(config.synthetic, config.split, config.env)


def remember_market(path: Path, market: Market, splits: Splits | None = None) -> Market:
    """Record the market of a new run in `path`; for an existing run return `market` as recorded.

    `splits` replace those by the configured fractions. Raises DataError where the run began on another market.
    """
    if (path / MARKET).is_file():
        return pinned(path, market)
    if splits is not None:
        market = split_market(market, splits)
    write_json(path / MARKET, sealed(record_market(market)))
    return market


def pinned(path: Path, market: Market) -> Market:
    """Return the market as recorded by the run in `path`. Raises DataError as `pin_market`, or for a damaged record."""
    return pin_market(market, read_market_record(path))


def read_market_record(path: Path) -> MarketRecord:
    """Return the market record of the run in `path`. Raises DataError for a damaged one."""
    try:
        record = dict(json.loads((path / MARKET).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"expected JSON in {path / MARKET}, got: {error}; restore it from a copy of the run") from None
    return read_record(record, str(path / MARKET))

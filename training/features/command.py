"""The command `features`: the sheet of all features of a market, shown and written."""

import logging
from pathlib import Path

import numpy as np

from environment.quotes import Quotes
from training.commands.table import FeaturesArguments
from training.evaluation.page.document import document, write_document
from training.features.sheet import QUINTILE_SESSIONS, FeatureRow, FeatureSheet, feature_sheet
from training.forecasts.training_days import TrainingDays
from training.run.market import load_market
from utils.charts import Chart, number
from utils.errors import ConfigError, DataError
from utils.runs.devices import choose_threads
from utils.runs.run_log import write_json
from utils.tables import many, table

logger = logging.getLogger(__name__)
_DRAWN = 12
"""Features with charts on the page, those with the clearest rank correlation."""
_OMITTED = ("group", "nearest", "correlation", "fifth 1", "fifth 2", "fifth 3", "fifth 4", "fifth 5")
"""Columns that a terminal has no room for."""


def run_features(arguments: FeaturesArguments, _: frozenset[str]) -> FeatureSheet:
    """Show the sheet of features, and write page and JSON where asked.

    Raises:
        ConfigError, DataError: the data or own features cannot be used, or a feature looks ahead.
    """
    config = arguments.settings
    for name in ("run", "resume"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"expected settings of a market, got --{name}; for those of a run give --config runs/NAME/config.json"
            )
    choose_threads(config.threads)
    market, _planted = load_market(config, audits=True)
    if not market.features:
        raise DataError("expected features, got --inputs past; leave it out")
    sheet = feature_sheet(market, TrainingDays.of(market, Quotes.on(market), config.env))
    rows = _rows(sheet)
    logger.info("%s", table(rows, [name for name in rows[0] if name not in _OMITTED]))
    logger.info(
        "%s, training days %s to %s; IC h: mean rank correlation over stocks with the return of h sessions from the "
        "next open on; persistence and turnover: of ranks and of the highest fifth, a session later; lost IC: what a "
        "ridge regression on all inputs loses without it, out of fold %.3f (t %.1f) with returns of %s",
        *(config.data or "built-in market", sheet.dates[0], sheet.dates[-1], sheet.ic, sheet.t),
        many(sheet.sessions, "session"),
    )
    logger.info("products of two inputs that tell of the next session: %s", "; ".join(sheet.products) or "none")
    if arguments.json is not None:
        features = [row.cells() for row in sheet.rows]
        whole = {name: getattr(sheet, name) for name in ("ic", "t", "sessions", "products")}
        write_json(arguments.json, {**whole, "features": features})
    if arguments.page is not None:
        write_document(render(sheet, config.data), arguments.page)
        logger.info("Wrote %s", arguments.page)
    return sheet


def render(sheet: FeatureSheet, data: Path | None) -> str:
    """Return the sheet as a page: a table of all features, and charts of those that tell most."""
    facts = {
        "Data": "built-in market" if data is None else data.name,
        "Training days": f"{sheet.dates[0]} to {sheet.dates[-1]}",
        "All inputs, ridge": f"rank IC {number(sheet.ic, 3)}, t {number(sheet.t, 1)}, of returns of "
        f"{many(sheet.sessions, 'session')}",
        "Products": "; ".join(sheet.products) or "none",
    }
    drawn = {row.feature.name: _charts(sheet, row) for row in sheet.rows[:_DRAWN] if np.isfinite(row.daily_ic).any()}
    units = {row.feature.name: row.feature.unit for row in sheet.rows}
    shown = {"facts": facts, "rows": _rows(sheet), "drawn": drawn, "units": units, "sessions": QUINTILE_SESSIONS}
    return document("sheet.html", "Features", folder=Path(__file__).parent, **shown)


def _charts(sheet: FeatureSheet, row: FeatureRow) -> list[Chart]:
    name, total = row.feature.name, {"sum of daily rank IC": np.nancumsum(row.daily_ic)}
    fifths = {"lowest to highest fifth": row.quintiles}
    return [
        Chart(f"{name}: rank IC over {QUINTILE_SESSIONS} sessions, summed up", sheet.dates, total, "{:+,.1f}"),
        Chart(f"{name}: return by fifths, less that of all, %", np.arange(1, 6), fifths, "{:+,.2f} %"),
    ]


def _rows(sheet: FeatureSheet) -> list[dict[str, str]]:
    return [{name: _text(name, value) for name, value in row.cells().items()} for row in sheet.rows]


def _text(name: str, value: float | str) -> str:
    return value if isinstance(value, str) else number(value, 1 if name.endswith("%") or name.startswith("t ") else 3)

"""The command `signals`: the champion's orders for the next session, shown and written."""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from models.ddpg_agent import SIGNIFICANCE_LEVEL, DDPGAgent
from training.commands.arguments import SignalsArguments
from training.run.saved import SavedRun, open_saved_run
from training.signals.attribution import METHOD, Share
from training.signals.broker_orders import BROKER_NOTES, BrokerOrder, alpaca_requests, broker_orders, ib_basket
from training.signals.holdings import read_holdings, session
from training.signals.signals import OpenPosition, Order, Signals, cash_left, make_signals
from utils.errors import ConfigError
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import write_atomically, write_json
from utils.tables import table

logger = logging.getLogger(__name__)


def run_signals(arguments: SignalsArguments) -> Signals:
    """Show, and write where asked, the orders of a run's champion for the session after a close.

    Raises:
        ConfigError, DataError: the run, the data, the date or the positions cannot be used.
    """
    choose_threads(arguments.threads)
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=choose_device(arguments.device))
    market, rules = run.market, run.config.env
    if arguments.capital is not None:
        rules = dataclasses.replace(rules, initial_capital=arguments.capital)
    day = len(market.dates) - 1 if arguments.date is None else session(arguments.date, market, "--date")
    holdings = [] if arguments.positions is None else read_holdings(arguments.positions, market, day)
    cash = cash_left(holdings, rules) if arguments.cash is None else arguments.cash
    signals = make_signals(run.champion, market, day, rules, cash, holdings)
    notes, told = _notes(run, day), evidence_sentence(run.champion)
    summary = (
        f"run {run.path}, champion of generation {run.generation}; decided at the close of {signals.date}, "
        f"orders for {signals.next_session}; capital {signals.capital:,.0f}, cash {signals.cash:,.0f}, "
        f"equity {signals.equity:,.0f}"
    )
    for text in (told, summary, *_tables(signals), *(f"note: {note}" for note in notes)):
        logger.info("%s", text)
    if arguments.csv is not None:
        _write(arguments.csv, "--csv", lambda path: write_atomically(path, orders_csv(signals)))
    if arguments.json is not None:
        origin = {"run": run.name, "champion_generation": run.generation}
        contents = origin | _evidence_values(run.champion) | dataclasses.asdict(signals)
        contents |= {"looks_at_method": METHOD, "notes": notes}
        _write(arguments.json, "--json", lambda path: write_json(path, contents))
    if arguments.ib is not None or arguments.alpaca is not None:
        orders = broker_orders(run.name, signals, holdings, rules, arguments.whole_shares)
        _write_for_brokers(arguments, signals, orders)
    return signals


def _write_for_brokers(arguments: SignalsArguments, signals: Signals, orders: Sequence[BrokerOrder]) -> None:
    """Write the files for brokers that were asked for, and say what to know before they are sent."""
    wanted = [order.ticker for order in signals.orders] + [position.ticker for position in signals.positions]
    too_small = sorted(set(wanted) - {order.ticker for order in orders})
    if too_small:
        logger.warning("less than a share, and not in the files for brokers: %s", ", ".join(too_small))
    targets = (("--ib", arguments.ib, ib_basket), ("--alpaca", arguments.alpaca, alpaca_requests))
    for flag, path, form in targets:
        if path is not None:
            _write(path, flag, partial(write_atomically, text=form(orders)))
            logger.info("%d for the next session in %s; nothing is sent", len(orders), path)
    for note in BROKER_NOTES:
        logger.info("note: %s", note)


def _write(path: Path, flag: str, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise ConfigError(f"expected a file to write to for {flag}, got {str(path)!r} ({error.strerror})") from None


def evidence_sentence(champion: DDPGAgent) -> str:
    """Say what training days show of what the champion expects, and what its orders therefore are."""
    if champion.holds_market:
        orders = "these orders hold the market, every stock in turn"
    else:
        orders = "these orders are the forecast as trained"
    return f"{champion.evidence.finding}: {orders}."


def _evidence_values(champion: DDPGAgent) -> dict[str, Any]:
    """Return the same as JSON values."""
    evidence = champion.evidence
    values = {
        "p_value": evidence.smallest,
        "significant_below": SIGNIFICANCE_LEVEL,
        "is_significant": evidence.is_significant,
    }
    return {"evidence": values | {"holds_market": champion.holds_market, "sentence": evidence_sentence(champion)}}


def _tables(signals: Signals) -> list[str]:
    if signals.orders:
        texts = [_titled("orders", [_order_row(order) for order in signals.orders])]
    else:
        best = signals.best_expected_percent
        reason = "nothing can be ordered"
        if best is not None:
            against = "cash is worth more, or short" if best > 0 else "it would not earn its costs"
            reason = f"most is expected of {signals.best_candidate}, {best:+.2f}% of its value, but {against}"
        texts = [f"no order: {reason}"]
    chosen = [order for order in signals.orders if order.looks_at]
    texts += [f"{order.ticker} looks at most at {_shares(order.looks_at)}" for order in chosen]
    if signals.positions:
        texts.append(_titled("open positions", [_position_row(position) for position in signals.positions]))
    return texts


def _titled(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{title}\n{table(rows, tuple(rows[0]))}"


def _order_row(order: Order) -> dict[str, Any]:
    return {
        "ticker": order.ticker,
        "coefficient": order.coefficient,
        "value": order.value,
        "% of capital": order.percent_of_capital,
        "expected %": order.expected_percent,
        **({} if order.networks_percent is None else {"of it networks %": order.networks_percent}),
        "close": order.close,
        "target %": order.target_percent,
        "target price": order.target_price,
        "latest exit": str(order.latest_exit),
    }


def _position_row(position: OpenPosition) -> dict[str, Any]:
    return {
        "ticker": position.ticker,
        "shares": position.shares,
        "bought": position.entry_date,
        "price": position.entry_price,
        "close": position.close,
        "gain %": position.unrealised_percent,
        "target price": position.target_price,
        "latest exit": str(position.latest_exit),
        "status": position.status,
    }


def _shares(attribution: Sequence[Share]) -> str:
    return ", ".join(map(str, attribution))


def orders_csv(signals: Signals) -> str:
    """Return one line an order, numbers in full; `looks_at` is text."""
    text = io.StringIO()
    names = [field.name for field in dataclasses.fields(Order)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["date", *names[:-2], "latest_exit", "latest_exit_is_estimate", "looks_at"])
    for order in signals.orders:
        values = [getattr(order, name) for name in names[:-2]]
        leaves = order.latest_exit
        writer.writerow([signals.date, *values, leaves.date, leaves.is_estimate, _shares(order.looks_at)])
    return text.getvalue()


def _notes(run: SavedRun, day: int) -> list[str]:
    market = run.market
    notes = [
        "sizes and targets assume an account whose trading period has just begun; fills, costs and exits follow the "
        "rules of the run's environment",
        f"what an order looks at: {METHOD}",
    ]
    if run.config.env.volume_cap > 0:
        notes.append("the volume of the session to come is not known: no order is cut to the volume cap")
    if run.config.data is None:
        notes.append("built-in synthetic market: not a real one")
    elif day <= market.splits.train.last:
        notes.append("the champion trained on this day, so its decision here is flattered")
    return notes

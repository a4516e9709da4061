"""The command `signals`: the champion's orders for the next session, shown and written."""

import csv
import dataclasses
import io
import logging
from collections.abc import Sequence
from typing import Any

from models.ddpg_agent import DDPGAgent
from models.evidence import SIGNIFICANCE_LEVEL
from training.commands.table import SignalsArguments
from training.run.saved import SavedRun, open_saved_run
from training.signals.broker_orders import (
    BROKER_NOTES,
    FRACTIONS_NOTE,
    STOPS_NOTE,
    BrokerOrder,
    alpaca_requests,
    broker_orders,
    ib_basket,
)
from training.signals.holdings import read_holdings, session
from training.signals.signals import Order, Signals, cash_left, make_signals
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import write_atomically, write_json
from utils.tables import printable, spreadsheet_text, table

logger = logging.getLogger(__name__)
_LABELS = {
    "percent_of_capital": "% of capital",
    "expected_percent": "expected %",
    "target_percent": "target %",
    "entry_date": "bought",
    "entry_price": "price",
    "unrealised_percent": "gain %",
}
"""Column labels where they are not the field's name."""


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
    if arguments.release:
        rules = dataclasses.replace(rules, drawdown_lock=0.0)
    signals = make_signals(run.champion, market, day, rules, cash, holdings, arguments.peak or 0.0)
    notes, evidence = _notes(run, day), evidence_sentence(run.champion)
    summary = (
        f"run {run.path}, champion of generation {run.generation}; decided at the close of {signals.date}, "
        f"orders for {signals.next_session}; capital {signals.capital:,.0f}, cash {signals.cash:,.0f}, "
        f"equity {signals.equity:,.0f}"
    )
    for text in (evidence, summary, *described(signals), *(f"note: {note}" for note in notes)):
        logger.info("%s", text)
    if arguments.csv is not None:
        write_atomically(arguments.csv, orders_csv(signals))
    if arguments.json is not None:
        origin = {"run": run.name, "champion_generation": run.generation, "evidence": _evidence_values(run.champion)}
        contents = origin | dataclasses.asdict(signals) | {"notes": notes}
        write_json(arguments.json, contents)
    if arguments.ib is not None or arguments.alpaca is not None:
        purchases = {order.ticker: order.value / order.close for order in signals.orders}
        orders = broker_orders(run.name, signals.date, purchases, holdings, rules, arguments.whole_shares)
        _write_for_brokers(arguments, signals, orders, has_stops=rules.stop_percent > 0)
    return signals


def _write_for_brokers(
    arguments: SignalsArguments, signals: Signals, orders: Sequence[BrokerOrder], *, has_stops: bool
) -> None:
    """Write the files for brokers that were asked for, and log what to know before sending them."""
    wanted = {order.ticker for order in signals.orders} | {position.ticker for position in signals.positions}
    too_small = sorted(wanted - {order.ticker for order in orders})
    if too_small:
        logger.warning("less than a share, and not in the files for brokers: %s", ", ".join(too_small))
    for path, form in ((arguments.ib, ib_basket), (arguments.alpaca, alpaca_requests)):
        if path is not None:
            write_atomically(path, form(orders))
            logger.info("%d for the next session in %s; nothing is sent", len(orders), path)
    if fractions := [order.ticker for order in orders if not order.is_whole]:
        logger.warning(FRACTIONS_NOTE, len(fractions), len(orders), ", ".join(fractions))
    for note in (*BROKER_NOTES, *([STOPS_NOTE] if has_stops else [])):
        logger.info("note: %s", note)


def evidence_sentence(champion: DDPGAgent) -> str:
    """Return the p-value of the champion's forecasts on training days, and what is bet on them."""
    return f"{champion.evidence.finding}. The champion is {champion.evidence.bet(champion.trust)}."


def _evidence_values(champion: DDPGAgent) -> dict[str, Any]:
    evidence = champion.evidence
    return {
        "p_value": evidence.smallest,
        "significant_below": SIGNIFICANCE_LEVEL,
        "is_significant": evidence.is_significant,
        "share_of_orders": champion.trust.orders,
        "trust_in_timing": champion.trust.timing,
        "sentence": evidence_sentence(champion),
    }


def described(signals: Signals) -> list[str]:
    """Return orders, or why there are none, and open positions as text."""
    if signals.is_locked:
        texts = ["no order: the account has fallen beyond its drawdown lock; --release places orders again"]
    elif signals.orders:
        by = "" if signals.is_forecast else ", which hold the market round robin"
        texts = [f"orders{by}\n{_table(signals.orders)}"]
    elif not signals.is_forecast:
        texts = ["no order: it is the market's turn, and no cash is left for it"]
    else:
        best = signals.best_expected_percent
        reason = "nothing can be ordered"
        if best is not None:
            against = "cash is worth more, or short" if best > 0 else "it would not earn its costs"
            reason = f"{signals.best_candidate} ranks first, {best:+.2f}% of its value is expected, but {against}"
        texts = [printable(f"no order: {reason}")]
    if signals.positions:
        texts.append(f"open positions\n{_table(signals.positions)}")
    return texts


def _table(items: Sequence[object]) -> str:
    """Return the fields of items, a row each; fields that the first item lacks are left out."""
    names = [name for name, value in vars(items[0]).items() if name != "sessions_held" and value is not None]
    labels = {name: _LABELS.get(name, name.replace("_", " ")) for name in names}
    rows = [{label: getattr(item, name) for name, label in labels.items()} for item in items]
    return table(rows, list(labels.values()))


def orders_csv(signals: Signals) -> str:
    """Return one line per order, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["date", *(field.name for field in dataclasses.fields(Order))])
    for order in signals.orders:
        ticker, *values = dataclasses.astuple(order)
        writer.writerow([signals.date, spreadsheet_text(ticker), *values])
    return text.getvalue()


def _notes(run: SavedRun, day: int) -> list[str]:
    notes = [
        "sizes and targets assume an account whose trading period has just begun; fills, costs and exits follow the "
        "rules of the run's environment; dates after the last session of the data are estimates in business days, "
        "without holidays",
    ]
    if run.config.env.stop_percent > 0:
        notes.append(f"each position is sold at a stop {run.config.env.stop_percent:g}% below the price of its fill")
    if run.config.env.volume_cap > 0:
        notes.append("the next session's volume is unknown: no order is cut to the volume cap")
    if run.config.data is None:
        notes.append("built-in synthetic market: not a real one")
    elif day <= run.market.splits.train.last:
        notes.append("the champion trained on this day, so its decision here is flattered")
    return notes

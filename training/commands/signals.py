"""The command `signals`: the champion's orders for the next session, shown and written."""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from training.commands.table import SignalsArguments
from training.run.saved import open_saved_run
from training.signals.broker_orders import alpaca_request, broker_orders, ib_basket
from training.signals.holdings import Holding, read_holdings, session
from training.signals.signals import Signals, make_signals, newest_day
from utils.errors import ConfigError
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import write_atomically, write_json
from utils.tables import many, table

logger = logging.getLogger(__name__)
_NOTE = (
    "orders are at the market for the next open, in whole shares by the last close: a higher open costs more; dates "
    "after the last session of the data are estimates, without holidays"
)
_EXPECTED = "expected percent is the forecast of what a unit gains, later sessions discounted"


def run_signals(arguments: SignalsArguments) -> Signals:
    """Show, and write where asked, the orders of a run's champion for the session after a close.

    Raises:
        ConfigError, DataError: the run, the data, the date or the positions cannot be used.
    """
    choose_threads(arguments.threads)
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=choose_device(arguments.device))
    market, rules, champion = run.market, run.config.env, run.champion
    day = newest_day(market) if arguments.date is None else session(arguments.date, market, "--date")
    holdings = list[Holding]() if arguments.positions is None else read_holdings(arguments.positions, market, day)
    if holdings and arguments.cash is None:
        raise ConfigError("expected --cash AMOUNT, what the account has besides its --positions, got none")
    cash = rules.initial_capital if arguments.cash is None else arguments.cash
    if arguments.release:
        rules = dataclasses.replace(rules, drawdown_lock=0.0)
    peak, least = arguments.peak or 0.0, arguments.least
    signals = make_signals(champion, run.benchmark, market, day, rules, cash, holdings, peak=peak, least=least)
    evidence, notes = champion.evidence.sentence, [_NOTE]
    if rules.drawdown_lock > 0 and arguments.peak is None:
        notes.append("the drawdown lock counts from the equity of today, unless --peak tells its highest so far")
    if not run.config.env.drawdown_lock and (arguments.release or arguments.peak):
        notes.append("the run has no drawdown lock: --peak and --release change nothing")
    if run.config.data is None:
        notes.append("built-in synthetic market: not a real one")
    elif day <= market.splits.train.last:
        notes.append("the champion trained on this day, so its decision here is flattered")
    summary = (
        f"run {run.path}, champion of generation {run.generation}; decided at the close of {signals.date}, "
        f"orders for {signals.next_session}; cash {signals.cash:,.0f}, equity {signals.equity:,.0f}"
    )
    moved = [holding.moved for holding in holdings if holding.moved]
    for text in (evidence, summary, *moved, *signal_lines(signals), *(f"note: {note}" for note in notes)):
        logger.info("%s", text)
    if arguments.json is not None:
        origin = {"run": run.name, "champion_generation": run.generation, "evidence": evidence}
        write_json(arguments.json, origin | dataclasses.asdict(signals) | {"notes": [*moved, *notes]})
    if arguments.ib is not None or arguments.alpaca is not None:
        orders = broker_orders(run.name, signals.date, signals.by_ticker)
        if arguments.ib is not None:
            write_atomically(arguments.ib, ib_basket(orders))
        if arguments.alpaca is not None:
            write_atomically(arguments.alpaca, json.dumps([*map(alpaca_request, orders)], indent=2) + "\n")
        logger.info("%d orders for brokers written; nothing is sent, and they are for the next open alone", len(orders))
    return signals


def signal_lines(signals: Signals) -> list[str]:
    """Return orders, or why there are none, and what is held as text."""
    texts = [f"orders\n{_table([vars(order) for order in signals.orders])}"] if signals.orders else []
    if signals.is_locked:
        texts.append("nothing is bought: the account has fallen beyond its drawdown lock; --release buys again")
    elif signals.orders:
        texts.append(_EXPECTED)
    else:
        texts.append("no order: what is held is as close to the target weights as an order can bring it")
    if signals.waiting:
        texts.append(f"{many(signals.waiting, 'order')} of less than a share, or than --least, will wait")
    return texts + ([f"holdings\n{_table(signals.positions)}"] if signals.positions else [])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as text; columns in which no row has anything are left out."""
    names = {name: name.replace("_", " ") for name in rows[0] if any(row[name] is not None for row in rows)}
    return table([{label: row[name] for name, label in names.items()} for row in rows])

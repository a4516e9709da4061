"""The command `signals`: the champion's orders for the next session, shown and written."""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from training.commands.table import SignalsArguments
from training.run.saved import open_saved_run
from training.signals.basket import basket_at_broker
from training.signals.broker_orders import alpaca_requests, broker_orders, ib_basket, netted
from training.signals.holdings import Holding, read_holdings, session
from training.signals.signals import Signals, cash_left, make_signals, newest_day
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import write_atomically, write_json
from utils.tables import table

logger = logging.getLogger(__name__)
_NOTE = (
    "sizes refer to the equity of the part that follows the agents; fills, costs and exits follow the rules of the "
    "run's environment; dates after the last session of the data are estimates, without holidays"
)
_EXPECTED = (
    "expected percent is the forecast until the position is sold, later sessions discounted; the target is a limit "
    "above the fill that only few positions reach before that"
)
_BROKER_NOTE = (
    "nothing is sent; the orders are for the next session alone, in whole shares by the last close: a higher open "
    "costs more. Sale targets of purchases depend on their fills and are written once they are held (--positions); "
    "stops are in Alpaca's file alone, and not those of new positions"
)


def run_signals(arguments: SignalsArguments) -> Signals:
    """Show, and write where asked, the orders of a run's champion for the session after a close.

    Raises:
        ConfigError, DataError: the run, the data, the date or the positions cannot be used.
    """
    choose_threads(arguments.threads)
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=choose_device(arguments.device))
    market, rules, champion = run.market, run.config.env, run.champion
    if arguments.capital is not None:
        rules = dataclasses.replace(rules, initial_capital=arguments.capital)
    day = newest_day(market) if arguments.date is None else session(arguments.date, market, "--date")
    basket = run.basket
    holdings = list[Holding]()
    if arguments.positions is not None:
        holdings = read_holdings(arguments.positions, market, day, basket.columns.tolist())
    cash = cash_left(holdings, rules) if arguments.cash is None else arguments.cash
    if arguments.release:
        rules = dataclasses.replace(rules, drawdown_lock=0.0)
    signals = make_signals(champion, basket, market, day, rules, cash, holdings, arguments.peak or 0.0)
    evidence = champion.evidence.sentence(champion.share)
    notes = [_NOTE]
    if run.config.data is None:
        notes.append("built-in synthetic market: not a real one")
    elif day <= market.splits.train.last:
        notes.append("the champion trained on this day, so its decision here is flattered")
    summary = (
        f"run {run.path}, champion of generation {run.generation}; decided at the close of {signals.date}, "
        f"orders for {signals.next_session}; capital {signals.capital:,.0f}, cash {signals.cash:,.0f}, "
        f"equity {signals.equity:,.0f}"
    )
    moved = [holding.moved for holding in holdings if holding.moved]
    for text in (evidence, summary, *moved, *signal_lines(signals), *(f"note: {note}" for note in notes)):
        logger.info("%s", text)
    if arguments.json is not None:
        origin = {"run": run.name, "champion_generation": run.generation, "evidence": evidence}
        write_json(arguments.json, origin | dataclasses.asdict(signals) | {"notes": [*moved, *notes]})
    if arguments.ib is not None or arguments.alpaca is not None:
        purchases = {order.ticker: order.value / order.close for order in signals.orders}
        positions = [holding for holding in holdings if not holding.is_of_basket]
        trades = [] if signals.basket is None else signals.basket.orders
        of_agents = broker_orders(run.name, signals.date, purchases, positions, rules, signals.sales)
        of_basket = basket_at_broker(run.name, signals.date, trades)
        too_small = {*purchases, *(one.ticker for one in positions)} - {order.ticker for order in of_agents}
        too_small |= {one.ticker for one in trades} - {order.ticker for order in of_basket}
        orders = netted(of_agents + of_basket)
        open_ = {order.ticker for order in of_agents if order.when == "target"}
        if untold := open_ - {order.ticker for order in orders if order.when == "target"}:
            logger.warning("bought, and without a sale target until that is filled: %s", ", ".join(sorted(untold)))
        if too_small:
            logger.warning("less than a share, and not in the files for brokers: %s", ", ".join(sorted(too_small)))
        if arguments.ib is not None:
            write_atomically(arguments.ib, ib_basket(orders))
        if arguments.alpaca is not None:
            write_atomically(arguments.alpaca, json.dumps(alpaca_requests(orders), indent=2) + "\n")
        logger.info("%d orders for brokers written: %s", len(orders), _BROKER_NOTE)
    return signals


def signal_lines(signals: Signals) -> list[str]:
    """Return orders, or why there are none, and open positions as text."""
    if signals.is_locked:
        texts = ["no order: the account has fallen beyond its drawdown lock; --release places orders again"]
    elif signals.orders:
        texts = [f"orders\n{_table([vars(order) for order in signals.orders])}", _EXPECTED]
    elif signals.share == 0:
        texts = ["no order of the agents: none of the capital follows them"]
    else:
        texts = ["no order: no stock promises more than its costs and its capital's price, or no cash is left"]
    texts += [signals.basket.line] if signals.basket is not None else []
    texts += [f"to be sold at the next open: {', '.join(signals.sales)}"] if signals.sales else []
    return texts + ([f"open positions\n{_table(signals.positions)}"] if signals.positions else [])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as text; columns in which the first row has nothing are left out."""
    names = {name: name.replace("_", " ") for name, value in rows[0].items() if value is not None}
    return table([{label: row[name] for name, label in names.items()} for row in rows], list(names.values()))

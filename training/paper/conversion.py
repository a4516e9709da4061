"""Accounts of the version before, of two parts: one row of their journal makes them one account of shares and cash.

The parts followed the agents and a basket. At the embedded venue each traded the whole capital, and the account was
worth a weighted sum of the two; of the basket the journal has the worth alone, and it is taken to hold what the
benchmark would. At a broker the parts shared what is there.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch

from data.market import Market, span_of
from environment.account import Account
from environment.benchmark import Benchmark, hold_benchmark
from environment.quotes import Quotes
from training.paper.book import Book
from training.paper.certificate import TERMS
from training.paper.decider import OwnPolicy, load_decider
from training.paper.journal import Journal
from utils.config.settings import to_dict
from utils.config.trader import Config
from utils.errors import ConfigError

LAYOUT = 3
"""Version of the journal's contents; increased when accounts of an earlier version cannot continue as they are."""
CONVERTS = 2
"""The version that is converted."""


def known_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an opening as far as there are such; its basket is the benchmark's holding."""

    def known(values: Mapping[str, Any], like: Any) -> dict[str, Any]:
        kept = {name: value for name, value in values.items() if hasattr(like, name)}
        nested = {name: known(kept[name], part) for name in kept if is_dataclass(part := getattr(like, name))}
        return kept | nested

    settings = known(values, Config())
    settings["evaluation"] = settings["evaluation"] | {"benchmark_weights": values["evaluation"].get("basket", "")}
    return settings


def conversion(journal: Journal, market: Market, config: Config) -> dict[str, Any]:
    """Return what makes an account of both parts' shares and cash at their last close, in place of its opening."""
    opening, book = journal.opening, Book(journal, market)
    benchmark = Benchmark.of(market, config.evaluation.benchmark_weights, config.seed)
    rules = replace(config.env, initial_capital=float(opening["capital"]))
    body: dict[str, Any] = {"layout": LAYOUT, "settings": to_dict(config), "certificate": TERMS, "text": ""}
    try:
        decider = load_decider(journal.path.parent, opening)
    except ConfigError:
        body |= {"champion": None}
        body["text"] = "; its champion is of an earlier version, and not asked any more: the benchmark is held"
    else:
        if isinstance(decider, OwnPolicy):
            body |= {"policy": decider.tuned(market, rules, benchmark).said}
    if book.last < book.start:
        return body | {"text": f"nothing is held yet{body['text']}"}
    date = book.date(book.last)
    said = journal.of("session")[date].body
    account = Account(Quotes.on(span_of(market, 0, len(market.dates)), benchmark.columns), rules)
    account.reset(torch.tensor([book.start]), steps=max(1, book.last - book.start))
    if book.last > book.start:
        hold_benchmark(account, benchmark.parts)
    whole, shares = float(said["whole"]), Counter[str]()
    tickers = [market.tickers[column] for column in benchmark.columns.tolist()]
    if opening["venue"] == "paper":
        agents, basket = _factors(journal, float(opening["capital"]))
        basket *= said["basket"] / float(account.equity)  # it is worth what was stated
        held = zip(tickers, account.shares[0].tolist(), strict=True)
        shares.update({ticker: agents * size for ticker, size in said["positions"].items()})
        shares.update({ticker: basket * size for ticker, size in held if size})
    else:
        shares = Counter(said["positions"]) + Counter(said["basket_positions"])
    cash = said.get("venue_cash")
    cash = whole - book.worth(shares, book.last) if cash is None else float(cash)
    if opening["venue"] == "paper":  # to the last digit as it will be rebuilt
        held_now = account.shares.new_tensor([[shares[ticker] for ticker in tickers]])
        account.hold(held_now, held_now.new_tensor([cash]))
        whole = float(account.equity)
    text = f"{len(shares)} stocks and {cash:,.2f} in cash at the close of {date} are one account of {whole:,.2f} now"
    return body | {
        "start": date,
        "capital": whole,
        "converted": {"cash": cash, "equity": whole, "positions": dict(shares), "benchmark": whole},
        "text": f"{text}{body['text']}",
    }


def _factors(journal: Journal, capital: float) -> tuple[float, float]:
    """Return what a unit of the agents' account and of the basket's was of the whole, by what sessions said of them."""
    exposed = float(journal.opening["settings"]["env"].get("exposure", 1.0))
    sessions = [row.body for row in journal.of("session").values()]
    one = max(sessions, key=lambda body: abs(body["equity"] - body["basket"]))
    gap = one["equity"] - one["basket"]
    share = ((one["whole"] - (1 - exposed) * capital) / exposed - one["basket"]) / gap if gap else 0.0
    return exposed * share, exposed * (1 - share)

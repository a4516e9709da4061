"""The commands `paper ...`: accounts that go on day after day."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from data.market import Market
from data.record import MARKET, data_fingerprint
from environment.portfolio import Portfolio
from training.evaluation.holdout import Look, add_look, locked_ledger
from training.paper.account import Account
from training.paper.arguments import (
    PaperArguments,
    PaperOpenArguments,
    PaperRenameArguments,
    PaperReplayArguments,
    PaperStepArguments,
)
from training.paper.certificate import finding
from training.paper.decider import Champion, Decider, OwnPolicy, word_of
from training.paper.folder import load_account, open_account, opened
from training.paper.journal import JOURNAL, STOP, Journal, paper_command
from training.paper.report import backtest, is_current, parity_sentence, write_report
from training.run.market import benchmark_of, read_market_record, require_past_columns
from training.run.saved import open_saved_run
from training.signals.holdings import session
from utils.config.cli import command_line
from utils.config.kinds import require_spent
from utils.config.settings import hint
from utils.config.trader import Config
from utils.errors import ConfigError, Remains, StopRequested
from utils.progress import progress
from utils.runs.console import setup_logging
from utils.runs.devices import choose_threads
from utils.runs.durable import new_directory
from utils.tables import listed, many

if TYPE_CHECKING:
    from training.paper.alpaca import AlpacaVenue

logger = logging.getLogger(__name__)
_CENT = 0.01
_SHOWN = 20
"""Positions and orders that the status lists."""
REPLAY = "replay"
"""Folder of the account that walks the sessions, within that of the account that it is a copy of."""
_DOUBTS = 3
"""Of a replay that are told."""


def run_open(arguments: PaperOpenArguments) -> None:
    """Begin an account with a run's champion or a policy, whose first order is given at the last close of the data.

    Raises:
        ConfigError, DataError: the name is taken, or run, policy, calendar, data or venue cannot be used.
    """
    decider, market, config, whose = _decider(arguments)
    broker = _broker(arguments.venue)
    if broker is not None and abs((cash := broker.cash()) - arguments.capital) > _CENT:
        raise ConfigError(
            f"expected --capital {cash:.2f}, the cash at the venue, got {arguments.capital:g}; give it, or reset the "
            "venue's account"
        )
    if broker is not None and (held := broker.positions()):
        raise ConfigError(
            f"expected no positions at the venue, got {listed([*held], _SHOWN)}; reset the venue's account"
        )
    open_account(arguments, decider, market, config)
    logger.info(
        "account %s opened with %s and a capital of %s; next, after each close: %s",
        arguments.path,
        whose,
        f"{arguments.capital:,.0f}",
        paper_command("step", arguments.path),
    )


def _decider(arguments: PaperOpenArguments) -> tuple[Decider, Market, Config, str]:
    """Return who is to decide in an account, its market and settings, and whose account it is, in words."""
    if arguments.policy is None:
        run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data)
        require_past_columns(run.market)
        champion = Champion(run.champion, run.name, run.generation)
        return champion, run.market, run.config, f"the champion of {run.name}"
    choose_threads(1)  # as `evaluate`
    # Imported late: it imports LightGBM, which no other command of accounts needs.
    from training.policies.judgement import load_market

    loaded = load_market(arguments.data, arguments.config)
    market, rules = loaded.market, loaded.config.env
    benchmark = benchmark_of(market, loaded.config)
    policy = OwnPolicy.of_file(arguments.policy, market, rules, benchmark)
    return policy, market, loaded.config, f"policy {policy.name}, of which it keeps a copy in {policy.file},"


def run_step(arguments: PaperStepArguments) -> None:
    """Take in the sessions since the last step, give the orders for the next one, and write the page.

    Raises:
        ConfigError, DataError: there is no such account, its journal or data are damaged, or a session is held.
        NoAnswer: the venue is silent; the next step goes on.
    """
    choose_threads(1)
    with _stoppable(), opened(arguments.path, arguments.head) as journal:
        setup_logging(journal.path.parent)
        account = load_account(journal, _broker(journal.opening["venue"]))
        now, newest = datetime.now(UTC), len(account.market.dates) - 1
        day = newest if arguments.date is None else session(arguments.date, account.market, "--date")
        if day < (last := account.book.last):
            raise ConfigError(f"expected --date from {account.book.date(last)} on, got {arguments.date}")
        # At recorded prices orders are never late.
        is_live = arguments.date is None or account.broker is not None
        is_new = account.on(day).step(now if is_live else None, until=account.book.date(newest) if day < newest else "")
        account = account.on(day)
        if not is_current(account):
            write_report(account, backtest(account))
        if not is_new:
            logger.info("%s is in the account already: nothing to do", account.book.date(-1))
        _show(journal)


def run_status(arguments: PaperArguments) -> None:
    """Show the account's last session, orders, positions and certificate, without its data."""
    with opened(arguments.path, arguments.head, reads_only=True) as journal:
        _show(journal)


def run_report(arguments: PaperArguments) -> None:
    """Write the page anew."""
    choose_threads(1)
    with opened(arguments.path, arguments.head) as journal:
        account = load_account(journal)
        if not journal.of("session"):
            raise ConfigError(f"expected an account with a session, got {account.name} before its first `paper step`")
        played = backtest(account)
        logger.info("%s", parity_sentence(account, played))
        logger.info("written to %s", write_report(account, played))


def run_stop(arguments: PaperArguments) -> None:
    """Stop new orders."""
    with opened(arguments.path, arguments.head) as journal:
        journal.append("stop", str(journal.last.number), {"text": f"`paper stop {arguments.name}`"})
        logger.info("no purchase is ordered until %s; orders that stand go on", paper_command("go", arguments.path))


def run_go(arguments: PaperArguments) -> None:
    """Accept what was held or doubted, and let orders be given again."""
    with opened(arguments.path, arguments.head) as journal:
        stop = journal.path.parent / STOP
        if stop.is_dir() and not stop.is_symlink():
            raise ConfigError(f"expected a file {stop}, got a folder; remove it")
        stop.unlink(missing_ok=True)
        journal.append("go", str(journal.last.number), {})
        logger.info("%s takes orders", arguments.name)


def run_rename(arguments: PaperRenameArguments) -> None:
    """Read a ticker under its new name from now on.

    Raises:
        ConfigError: the account knows no ticker of the old name, or one of the new name already.
    """
    path = arguments.runs_dir / arguments.name
    with opened(path) as journal:
        renamed, first = journal.renamed, read_market_record(path).tickers
        known = [renamed.get(ticker, ticker) for ticker in first]
        if arguments.new in known:
            raise ConfigError(f"expected a new name for {arguments.old}, got {arguments.new}, which is known already")
        if arguments.old not in {*known, *first}:
            raise ConfigError(
                f"expected a ticker of {arguments.name} and a new name, got {arguments.old!r} and {arguments.new!r}"
                f"{hint(arguments.old, known)}; give the two names as in the data"
            )
        body = {"old": arguments.old, "new": arguments.new, "text": f"{arguments.old} is {arguments.new} now"}
        journal.append("rename", str(journal.last.number), body)
        logger.info("%s; its history must be in the data, under either name", body["text"])


def run_replay(arguments: PaperReplayArguments) -> None:
    """Walk sessions, by default the validation days, and compare the account with its backtest.

    Each session is a step of an account that knows its journal only, as by `paper step`; what is compared is read from
    the disk. What a live account would ask a person about is taken as it is, as the backtest takes it, and told. A look
    at the holdout is entered into the ledger of the folder of runs before anything is walked.

    Raises:
        ConfigError, DataError: there is no such account, or there are no such sessions, or they are of the holdout,
            whose look was not to be spent.
    """
    choose_threads(1)
    with opened(arguments.path, arguments.head) as journal:
        account = load_account(journal)
        logger.info("%s", _replay(account, _sessions(account, arguments)))


def _sessions(account: Account, arguments: PaperReplayArguments) -> range:
    """Return the days to walk; those of the holdout are entered into the ledger."""
    date, last, splits = account.book.date, len(account.market.dates) - 1, account.market.splits
    begin = splits.validation.first if arguments.from_ is None else session(arguments.from_, account.market, "--from")
    end = splits.validation.last if begin <= splits.validation.last else last
    end = end if arguments.to is None else session(arguments.to, account.market, "--to")
    days = range(begin, end + 1)
    if len(days) < 2:
        raise ConfigError(
            f"expected two sessions or more from {date(0)} to {date(last)}, got {date(begin)} to {date(end)}"
        )
    if splits.holdout.days and days[0] <= splits.holdout.last and days[-1] >= splits.holdout.first:
        require_spent(arguments.spend_look)
        _enter(account, date(begin), date(end))
    return days


def _replay(account: Account, days: range) -> str:
    """Walk days; say what was earned, what was doubtful, the result of the comparison, and the path of the page."""
    first, last = account.book.date(days[0]), account.book.date(days[-1])
    folder, opening = account.path / REPLAY, {**account.journal.opening}
    with new_directory(folder) as fresh:
        for name in (account.decider.file, MARKET):
            shutil.copy2(account.path / name, fresh / name)
        Journal.create(fresh / JOURNAL, opening | {"venue": "paper", "start": first})

    def replayed(day: int, journal: Journal, walked: Portfolio | None = None) -> Account:
        """Return the account of the replay after a session."""
        return account.on(day, is_replay=True, path=folder, journal=journal, changes=(), walked=walked)

    with Journal(folder / JOURNAL) as journal:
        walked = replayed(days[-1], journal).new_portfolio()
        for day in progress(days, "Replaying sessions", "session"):
            replayed(day, journal, walked).step()
    with Journal(folder / JOURNAL) as journal:
        today = replayed(days[-1], journal)
        played = backtest(today)
        sessions = [*journal.sessions.values()]
        filled = sum(len(session["fills"]) for session in sessions)
        earned, held = (sessions[-1][name] / sessions[0][name] - 1 for name in ("equity", "benchmark"))
        return (
            f"{account.name} on {many(len(days), 'session')}, {first} to {last}: {earned:+.2%}, "
            f"its benchmark {held:+.2%}; {filled} fills\n"
            f"{_doubts(journal)}"
            f"{parity_sentence(today, played)}\n"
            f"written to {write_report(today, played)}"
        )


def _doubts(journal: Journal) -> str:
    """Say in a line what a live account would have asked about; empty where it would not have."""
    texts = [row.body["text"] for row in journal.of("hold").values()]
    others = f"; and {len(texts) - _DOUBTS} more on the page" if len(texts) > _DOUBTS else ""
    asked = f"data taken as they are where a live account asks ({len(texts)}): expected "
    return f"{asked}{'; '.join(texts[:_DOUBTS])}{others}\n" if texts else ""


def _enter(account: Account, first: str, last: str) -> None:
    """Enter a look into the ledger; its result is not known yet."""
    command = command_line("paper", "replay", account.name, "--from", first, "--to", last, "--spend-look")
    time, opening = datetime.now(UTC).isoformat(timespec="seconds"), account.journal.opening
    look = Look(
        time, command, opening["generation"], first, last, None, "walked by a paper account", opening["run"],
        data_fingerprint(account.market),
    )  # fmt: skip
    with locked_ledger(account.path.parent) as ledger:
        add_look(ledger, look)


def _show(journal: Journal) -> None:
    """Log where the account stands, without its data."""
    sessions, intents, certificate = journal.sessions, journal.of("intent"), journal.opening["certificate"]
    if not sessions:
        logger.info("no session yet; for the first orders: %s", paper_command("step", journal.path.parent))
        return
    date, last = next(reversed(sessions.items()))
    factors, who = journal.units(), word_of(journal.opening)
    refused = {key for key, row in journal.of("answer").items() if row.body["status"] != "accepted"}
    orders = [order for order in intents[date].body["orders"] if order["id"] not in refused] if date in intents else []
    equity, cash, benchmark = (f"{round(last[name], 2) + 0.0:,.2f}" for name in ("equity", "cash", "benchmark"))
    logger.info("%s: equity %s, cash %s; its benchmark %s", date, equity, cash, benchmark)
    logger.info("head of the journal: %s, row %d", journal.last.hash, journal.last.number)
    held = [f"{ticker} {shares / factors[ticker]:g}" for ticker, shares in last["positions"].items()]
    asked = [f"{one['side']} {one['ticker']} {one['shares'] / factors[one['ticker']]:g}" for one in orders]
    texts = [listed(one, _SHOWN) or "none" for one in (held, asked)]
    logger.info("positions: %s; orders for the next open: %s", *texts)
    if reason := journal.stop_reason():
        go = paper_command("go", journal.path.parent)
        logger.warning("nothing is bought: %s; the next close decides again after %s", reason, go)
    results = [body["result"] for body in sessions.values()]
    logger.info("%s", finding(results, list(sessions), certificate, who))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM end a step: all rows of its journal are on disk, and the next step goes on."""

    def stop(number: int, _: object) -> None:
        raise StopRequested(number, time.monotonic())

    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except StopRequested as stopped:
        stopped.remains = Remains("what it did until now is saved in its journal", ())
        raise
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _broker(venue: str) -> AlpacaVenue | None:
    if venue == "paper":
        return None
    from training.paper.alpaca import AlpacaVenue

    return AlpacaVenue.of_environment()

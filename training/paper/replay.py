"""Recorded sessions, walked by an account as if each were today."""

import logging
import shlex
import shutil
from datetime import UTC, datetime

from data.record import MARKET, data_fingerprint
from environment.portfolio import Portfolio
from training.evaluation.holdout import Look, add_look, locked_ledger
from training.paper.account import Account
from training.paper.backtest import backtest
from training.paper.journal import JOURNAL, Journal
from training.paper.report import parity_sentence, write_report
from training.signals.holdings import session
from utils.config.kinds import require_spent
from utils.errors import ConfigError
from utils.progress import progress
from utils.runs.durable import new_directory
from utils.tables import many

REPLAY = "replay"
"""Folder of the account that walks the sessions, within that of the account that it is a copy of."""
_SHOWN = 3
"""Doubts that are told."""


def replay(account: Account, first: str | None, last: str | None, *, spends_look: bool) -> str:
    """Walk sessions, by default the validation days, and compare the account with its backtest.

    Each session is a step of an account that knows its journal only, as by `paper step`; what is compared is read from
    the disk. What a live account would ask a person about is taken as it is, as the backtest takes it, and told. A look
    at the holdout is entered into the ledger of the folder of runs before anything is walked.

    Returns:
        The sessions and returns, what was doubtful, the result of the comparison, and the path of the page.

    Raises:
        ConfigError: there are no such sessions, or they are of the holdout, whose look was not to be spent.
    """
    dates, splits = account.market.dates.astype("datetime64[D]").astype(str), account.market.splits
    begin = splits.validation.first if first is None else session(first, account.market, "--from")
    end = splits.validation.last if begin <= splits.validation.last else len(dates) - 1
    end = end if last is None else session(last, account.market, "--to")
    days = range(begin, end + 1)
    if len(days) < 2:
        raise ConfigError(
            f"expected two sessions or more from {dates[0]} to {dates[-1]}, got {dates[begin]} to {dates[end]}"
        )
    if splits.holdout.days and days[0] <= splits.holdout.last and days[-1] >= splits.holdout.first:
        require_spent(spends_look)
        _enter(account, dates[days[0]], dates[days[-1]])
    folder, opening = account.path / REPLAY, {**account.journal.opening}
    opening.pop("converted", None)  # it begins with cash
    with new_directory(folder) as fresh:
        for name in (account.decider.file, MARKET):
            shutil.copy2(account.path / name, fresh / name)
        Journal.create(fresh / JOURNAL, opening | {"venue": "paper", "start": dates[days[0]]})

    def replayed(day: int, journal: Journal, walked: Portfolio | None = None) -> Account:
        """Return the account of the replay after a session."""
        parts = {"path": folder, "journal": journal, "changes": (), "walked": walked}
        return account.on(day, level=logging.DEBUG, is_replay=True, **parts)

    with Journal(folder / JOURNAL) as journal:
        walked = replayed(days[-1], journal).new_portfolio()
        for day in progress(days, "replay", "session"):
            replayed(day, journal, walked).step()
    with Journal(folder / JOURNAL) as journal:
        today = replayed(days[-1], journal)
        played = backtest(today)
        sessions = [*journal.sessions.values()]
        filled = sum(len(session["fills"]) for session in sessions)
        earned, held = (sessions[-1][name] / sessions[0][name] - 1 for name in ("equity", "benchmark"))
        return (
            f"{account.name} on {many(len(days), 'session')}, {dates[days[0]]} to {dates[days[-1]]}: {earned:+.2%}, "
            f"its benchmark {held:+.2%}; {filled} fills\n"
            f"{_doubts(journal)}"
            f"{parity_sentence(today, played)}\n"
            f"written to {write_report(today, played)}"
        )


def _doubts(journal: Journal) -> str:
    """Say in a line what a live account would have asked about; empty where it would not have."""
    texts = [row.body["text"] for row in journal.of("hold").values()]
    others = f"; and {len(texts) - _SHOWN} more on the page" if len(texts) > _SHOWN else ""
    asked = f"data taken as they are where a live account asks ({len(texts)}): expected "
    return f"{asked}{'; '.join(texts[:_SHOWN])}{others}\n" if texts else ""


def _enter(account: Account, first: str, last: str) -> None:
    """Enter a look into the ledger; its result is not known yet."""
    words = ["python", "main.py", "paper", "replay", account.name, "--from", first, "--to", last, "--spend-look"]
    time, opening = datetime.now(UTC).isoformat(timespec="seconds"), account.journal.opening
    look = Look(
        time, shlex.join(words), opening["generation"], first, last, None, "walked by a paper account", opening["run"],
        data_fingerprint(account.market),
    )  # fmt: skip
    with locked_ledger(account.path.parent) as ledger:
        add_look(ledger, look)

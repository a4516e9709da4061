"""A stop holds for all that did not reach the venue yet."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest import mock

import pytest

from tests.paper.cases import START, Walk, agent_of, keeper
from training.paper.account import Account
from training.paper.journal import STOP
from training.paper.venue import NoAnswer

AGENT = keeper()


def by_file(walk: Walk) -> None:
    (walk.folder / STOP).touch()


def by_dangling_link(walk: Walk) -> None:
    (walk.folder / STOP).symlink_to(walk.folder / "nothing")


def by_command(walk: Walk) -> None:
    with walk.journal() as journal:
        journal.append("stop", "1", {"text": "`paper stop one`"})


@pytest.mark.parametrize("stop", [by_file, by_dangling_link, by_command])
def test_an_intent_without_an_answer_is_cancelled_under_a_stop(
    tmp_path: Path, stop: Callable[[Walk], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between intent and venue, and stopped before the next step: nothing is bought, ever."""
    walk = Walk(tmp_path, AGENT)
    with mock.patch.object(Account, "_send", side_effect=NoAnswer("silence")), pytest.raises(NoAnswer):
        walk.step(START)
    stop(walk)
    walk.step(START)
    answers = [one["status"] for one in walk.of("answer")]
    assert answers and set(answers) == {"cancelled"} and "is cancelled" in caplog.text
    walk.step(START + 1)
    assert not any(row[2]["fills"] or row[2]["positions"] for row in walk.rows() if row[0] == "session")


def test_sales_go_on_under_a_stop(tmp_path: Path) -> None:
    """An intended sale is sent: a stop is of purchases."""
    statuses = set[tuple[str, str]]()
    for seed, last in product(range(3), (START + 2, START + 5)):
        walk = Walk(tmp_path / f"{seed} {last}", agent_of(seed))
        walk.step(*range(START, last))
        with mock.patch.object(Account, "_send", side_effect=NoAnswer("silence")), pytest.raises(NoAnswer):
            walk.step(last)
        by_file(walk)
        walk.step(last)
        answers = {row[1]: row[2]["status"] for row in walk.rows() if row[0] == "answer"}
        orders = [one["orders"] for one in walk.of("intent")][-1]
        statuses |= {(order["side"], answers[order["id"]]) for order in orders}
    assert statuses == {("sell", "accepted"), ("buy", "cancelled")}

"""A paper account in a world that changes: dividends, splits, revised bars, halts, renames and late files.

`python -m benchmarks.faults.changing [--worlds 100] [--seed 0]` walks 60 sessions of an account in each world, once on
files as a vendor of adjusted prices would have given them day by day, once on files in which nothing ever changes.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd

from benchmarks.faults.harness import SMALL_RUN, Ended, Row, flags, folder, run_here
from data.events import events_file
from training.paper.journal import JOURNAL, Journal
from utils.progress import progress

LEARNED, SESSIONS, STOCKS, HALTS = 300, 60, 6, 3
START = "2015-01-05"
PRICES = ["open", "high", "low", "close"]
RATIOS = (0.995, 0.9875, 0.97, 0.999, 0.5, 0.25, 2 / 3, 0.8, 1.5, 10.0, 25.0)
"""Dividends, splits, reverse splits: what earlier prices are multiplied by."""
_NEAR = 5.0
"""What the last digits of adjusted prices may make of forecasts, and these of orders; the smallest dividend, 0.1% on a
sixth of the account, is more than three times as much."""


@dataclass
class World:
    """What happens on the sessions of an account, drawn at random; days are counted from the first bar of the file."""

    bars: pd.DataFrame
    """As a vendor would give them after all that happens; a halted stock has none."""
    events: list[tuple[int, str, float]] = field(default_factory=list)
    """(first day in new units, ticker, ratio)."""
    revisions: dict[int, list[tuple[int, str, float, bool]]] = field(default_factory=dict)
    """By the day on which the file shows it: day of the bar, ticker, factor of its close, and whether it remains."""
    renames: dict[int, tuple[str, str]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    """Days on which a step finds the file of the day before first."""
    missed: set[int] = field(default_factory=set)
    """Days on which nobody steps, in either account."""
    is_named: bool = False
    """The vendor names its dividends and splits."""

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "World":
        """Draw a world with several of each kind."""
        world, names = cls(random_bars(rng)), [f"T{stock}" for stock in range(STOCKS)]

        def days(count: int) -> list[int]:
            return sorted(rng.choice(np.arange(LEARNED + 1, LEARNED + SESSIONS), count, replace=False).tolist())

        world.events = [(day, str(rng.choice(names)), float(rng.choice(RATIOS))) for day in days(12)]
        for day in days(4):
            known = int(rng.integers(LEARNED - 1, day))
            change = (known, str(rng.choice(names)), float(rng.uniform(1.001, 1.1)), bool(rng.random() < 0.5))
            world.revisions[day] = [change]
        for day in days(HALTS):
            gone = (world.bars["ticker"] == str(rng.choice(names))) & (world.bars["day"] >= day)
            world.bars = world.bars[~gone | (world.bars["day"] >= day + rng.integers(1, 5))]
        first, second = days(2)
        name = str(rng.choice(names))
        world.renames = {first: (name, "NEW"), second: ("NEW", "NEWER")}
        world.late, world.missed = set(days(4)), set(days(2)) - {LEARNED + SESSIONS - 1}
        world.is_named = bool(rng.random() < 0.5)
        return world

    def undisturbed(self, day: int) -> pd.DataFrame:
        """Return the file of a day in which nothing ever changes."""
        return self.bars[self.bars["day"] <= day]

    def file(self, day: int) -> pd.DataFrame:
        """Return the file of a day as the vendor gives it."""
        rows = self.undisturbed(day).copy()
        for since, ticker, ratio in self.events:
            if since > day:
                rows.loc[rows["ticker"] == ticker, PRICES] /= ratio
        for shown, changes in self.revisions.items():
            for known, ticker, factor, remains in changes:
                if shown == day or (remains and shown < day):
                    bar = (rows["ticker"] == ticker) & (rows["day"] == known)
                    rows.loc[bar, ["high", "close"]] *= factor
        for since, (old, new) in self.renames.items():
            if since <= day:
                rows["ticker"] = rows["ticker"].replace(old, new)
        return rows

    def named(self, day: int) -> pd.DataFrame:
        """Return the events that the vendor names up to a day; dividends are paid a week after their ex-dates."""
        rows, today = list[dict[str, object]](), pd.Timestamp(START) + day * pd.offsets.BDay()
        for since, ticker, ratio in self.events if self.is_named else ():
            if (ex := pd.Timestamp(START) + since * pd.offsets.BDay()) > today:
                continue
            own = self.bars[(self.bars["ticker"] == ticker) & (self.bars["day"] < since)]
            later = [part for other, name, part in self.events if name == ticker and other >= since]
            cash = (1 - ratio) * own["close"].iloc[-1] / np.prod(later)
            sizes = {"dividend": cash, "split": ""} if 0.9 < ratio < 1 else {"dividend": "", "split": 1 / ratio}
            pay = ex + pd.Timedelta(days=7) if 0.9 < ratio < 1 else pd.NaT
            name = self.file(day).loc[own.index[-1], "ticker"]
            rows.append({"ticker": name, "date": ex.date(), **sizes, "pay_date": "" if pay is pd.NaT else pay.date()})
        return pd.DataFrame(rows, columns=["ticker", "date", "split", "dividend", "pay_date"])


def random_bars(rng: np.random.Generator) -> pd.DataFrame:
    """Return daily bars of random walks with momentum, so that there is something to buy; all begin with the same."""
    days, learned = LEARNED + SESSIONS, np.random.default_rng(0)
    parts = learned.standard_normal((LEARNED, 4, STOCKS)), rng.standard_normal((SESSIONS, 4, STOCKS))
    noise, overnight, above, below = np.concatenate(parts).swapaxes(0, 1)
    steps = 0.02 * noise
    for day in range(1, days):
        steps[day] += 0.3 * steps[day - 1]
    close = 50 * np.exp(np.cumsum(steps, axis=0))
    open_ = close * np.exp(0.003 * overnight)
    # Bars that were all as wide would vary by rounding alone, and forecasts with it.
    high, low = np.maximum(open_, close), np.minimum(open_, close)
    high, low = high * np.exp(0.004 * np.abs(above)), low * np.exp(-0.004 * np.abs(below))
    dates = np.busday_offset(np.datetime64(START), np.arange(days)).astype("datetime64[s]")
    bars = pd.DataFrame({"date": np.repeat(dates, STOCKS), "ticker": [f"T{stock}" for stock in range(STOCKS)] * days})
    bars[PRICES] = np.stack((open_, high, low, close), axis=-1).reshape(-1, len(PRICES))
    return bars.assign(day=np.repeat(np.arange(days), STOCKS))


@contextmanager
def trained() -> Iterator[Path]:
    """Make a folder of runs with a champion in it."""
    with folder() as runs:
        write(World(random_bars(np.random.default_rng(0))).undisturbed(LEARNED - 1), runs / "learned.parquet")
        words = flags(runs, SMALL_RUN.replace('[synthetic]\nkind = "momentum"\ndays = 300\nstocks = 6\n', ""))
        words += ["--learning.gradient-steps", "60"]  # an agent that has hardly learned orders nothing
        ended = run_here(*words, "--run", "one", "--generations", "1", "--data", str(runs / "learned.parquet"))
        assert ended.code == 0, ended.shown
        yield runs


def write(rows: pd.DataFrame, path: Path) -> None:
    """Write a file of bars."""
    rows.drop(columns="day").to_parquet(path)


def walk(runs: Path, name: str, world: World, *, is_disturbed: bool) -> list[dict[str, float]]:
    """Walk all sessions; return cash, equity and number of fills of each."""
    data, asked = runs / f"{name}.parquet", 0
    file = world.file if is_disturbed else world.undisturbed

    def paper(*words: str) -> Ended:
        return run_here("paper", *words, "--runs-dir", str(runs))

    def step(day: int) -> None:
        nonlocal asked
        write(file(day), data)
        if is_disturbed:
            world.named(day).to_csv(events_file(data), index=False)
        for _ in range(4):
            if (ended := paper("step", name)).code == 0:
                return
            # A price may come back from a halt as far away as after a split.
            assert ended.code == 2 and (is_disturbed or ended.says("got what looks like a")), ended.shown
            for old, new in (change for since, change in world.renames.items() if is_disturbed and since <= day):
                paper("rename", name, old, new)
            asked += 1
            assert paper("go", name).code == 0
        raise AssertionError(f"{name}: the account never went on after session {day}")

    write(file(LEARNED - 1), data)
    assert paper("open", name, "--run", "one", "--data", str(data)).code == 0
    with mock.patch.multiple("training.commands.paper", write_report=mock.DEFAULT, backtest=mock.DEFAULT):
        for day in range(LEARNED - 1, LEARNED + SESSIONS):
            if day in world.missed:
                continue
            if is_disturbed and day in world.late and day > LEARNED and day - 1 not in world.missed:
                step(day - 1)
            step(day)
    assert asked <= HALTS + is_disturbed * (2 * len(world.revisions) + len(world.renames))
    with Journal(runs / name / JOURNAL) as journal:
        if is_disturbed and world.is_named:
            ids = {(row.body["since"], row.body["kind"]) for row in journal.of("event").values()}
            named = world.named(LEARNED + SESSIONS - 1).itertuples()
            assert ids == {(str(row.date), "dividend" if row.dividend else "split") for row in named}
        bodies = [row.body for row in journal.of("session").values()]
    return [{"cash": one["cash"], "equity": one["equity"], "fills": len(one["fills"])} for one in bodies]


def difference(runs: Path, seed: int) -> tuple[float, int]:
    """Return the largest difference of cash or equity of two accounts in one world, and how many fills there were."""
    world = World.draw(np.random.default_rng(seed))
    changed, plain = (walk(runs, f"w{seed}{int(one)}", world, is_disturbed=one) for one in (True, False))
    gaps = [
        abs(one[name] - other[name]) for one, other in zip(changed, plain, strict=True) for name in ("cash", "equity")
    ]
    return max(gaps), sum(int(one["fills"]) for one in plain)


def row(count: int, seed: int = 0) -> Row:
    """Compare accounts in many worlds."""
    largest, fills = 0.0, 0
    with trained() as runs:
        for world in progress(range(seed, seed + count), "worlds", "world"):
            gap, filled = difference(runs, world)
            largest, fills = max(largest, gap), fills + filled
    measured = f"{fills} fills: largest difference of cash or equity {largest:.4f}"
    must_be = f"cash and equity of an undisturbed account, to {_NEAR:g} of 100,000"
    test = "paper: dividends, splits, revisions, halts, renames, late files"
    return Row(test, count, must_be, measured, largest < _NEAR)


def main(argv: list[str] | None = None) -> int:
    """Print the row; the exit code is 1 if it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(outcome := row(arguments.worlds, arguments.seed))
    return 0 if outcome.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())

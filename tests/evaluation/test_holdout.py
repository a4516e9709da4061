"""The ledger of looks: by the data's contents, across runs, folders and processes."""

import dataclasses
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from data.features.nine import PRICES
from data.market import Market
from data.record import data_fingerprint
from tests.tiny import random_world
from training.evaluation.holdout import LEDGER, Look, add_look, champions_looked_at, locked_ledger, read_looks
from utils.errors import ConfigError

DAYS = ("2020-01-20", "2020-01-30")


def market(seed: int = 0) -> Market:
    """A market of six tickers and sixty days."""
    return random_world(seed, days=60).market


def look(
    run: str, generation: int | None, data: tuple[str, ...], first: str = DAYS[0], last: str = DAYS[1], time: int = 1
) -> Look:
    return Look(f"2026-01-01T00:00:{time:02d}+00:00", "evaluate", generation, first, last, 1.5, "No skill.", run, data)


def test_the_same_data_are_known_by_what_they_hold() -> None:
    """Whatever the tickers' names, with a ticker less, and with days more."""
    one = market()
    known = set(data_fingerprint(one))
    assert 1 <= len(known) <= 16 and not known & set(data_fingerprint(market(1)))
    renamed = dataclasses.replace(one, tickers=[f"X{i}" for i in range(6)], investable_columns=np.array([1]))
    fewer = dataclasses.replace(one, data_array=one.data_array[:, 1:], tickers=one.tickers[1:])
    assert set(data_fingerprint(renamed)) == known and known & set(data_fingerprint(fewer))
    data = np.full((400, 3, 9), np.nan, dtype=np.float32)
    data[..., list(PRICES)] = np.random.default_rng(0).uniform(1, 2, (400, 3, 4))
    dates = np.datetime64("2020-01-01") + np.arange(400)
    long = dataclasses.replace(one, data_array=data, dates=dates, tickers=["A", "B", "C"])
    short = dataclasses.replace(long, data_array=data[:300], dates=long.dates[:300])
    assert data_fingerprint(long) == data_fingerprint(short)


def test_readjusted_prices_are_the_same_data() -> None:
    """In single precision and in a vendor's decimals; stocks of one market, half of whose moves they share, are not."""
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal((252, 1)), rng.standard_normal((252, 120))
    close = np.round(40 * np.exp(0.01 * np.cumsum(shared + own, axis=0)), 2)
    data = np.repeat(close[..., None], 9, axis=2).astype(np.float32)
    dates = np.datetime64("2020-01-01") + np.arange(252)
    both = dataclasses.replace(market(), data_array=data, dates=dates, tickers=[*map(str, range(120))])

    def entries(prices: np.ndarray) -> set[str]:
        columns = [str(column) for column in range(prices.shape[1])]
        return set(data_fingerprint(dataclasses.replace(both, data_array=prices, tickers=columns)))

    factors = rng.choice([0.97, 0.995, 0.5, 1 / 3], 60).astype(np.float32)[:, None]
    assert not entries(data[:, :60]) & entries(data[:, 60:])
    for again in (data[:, :60] * factors, np.round(data[:, :60] * factors, 2)):
        assert entries(data[:, :60]) & entries(again)


def test_looks_at_overlapping_days_of_the_same_data_count_whatever_the_run(tmp_path: Path) -> None:
    data, other = data_fingerprint(market()), data_fingerprint(market(1))
    kept = [
        look("one", 3, data, time=1),
        look("one", 3, data, time=2),
        look("two", 3, data, "2020-01-30", "2020-02-20", time=3),
        look("walk", None, data, "2019-01-01", "2020-01-20", time=4),
    ]
    for one in kept:
        add_look(tmp_path / LEDGER, one)
    add_look(tmp_path / LEDGER, look("later", 3, data, "2020-02-01", "2020-02-20"))
    add_look(tmp_path / LEDGER, look("elsewhere", 3, other))
    found = read_looks(tmp_path, market(), *DAYS)
    assert found == kept
    assert champions_looked_at(found, ("two", 3, "")) == 3 and champions_looked_at(found, ("two", 4, "")) == 4
    assert champions_looked_at([], ("one", 4, "a")) == 1
    # A look without a digest is at the champion of its run; another one under the same name is another.
    assert champions_looked_at(found, ("two", 3, "a")) == 3
    found = [*found, dataclasses.replace(kept[2], digest="a")]
    assert champions_looked_at(found, ("two", 3, "a")) == 3 and champions_looked_at(found, ("two", 3, "b")) == 4


def test_a_torn_line_is_named(tmp_path: Path) -> None:
    add_look(tmp_path / LEDGER, look("one", 3, data_fingerprint(market())))
    with (tmp_path / LEDGER).open("a") as file:
        file.write("torn\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_looks(tmp_path, market(), *DAYS)


def look_many_times(folder: Path, run: str) -> list[int]:
    """Return how many looks the ledger had before each look."""
    data, counts = data_fingerprint(market()), []
    for _ in range(25):
        with locked_ledger(folder) as ledger:
            counts.append(len(ledger.read_text().splitlines()))
            add_look(ledger, look(run, counts[-1], data))
    return counts


def test_processes_that_look_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each sees all looks that came before its own."""
    with ProcessPoolExecutor(3, multiprocessing.get_context("fork")) as workers:
        counts = workers.map(look_many_times, [tmp_path] * 3, ["a", "b", "c"])
    assert sorted(itertools.chain(*counts)) == list(range(75))
    assert len(read_looks(tmp_path, market(), *DAYS)) == 75

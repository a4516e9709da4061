"""Columns beside the bars: kept ones, and joined ones as of the day on which they are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.bars import sector_numbers
from data.loader import StockDataLoader
from data.prepare.prepare import prepare
from main import main
from tests.data.files import refused, written
from utils.config.prepare import Choices

DAYS = pd.bdate_range("2020-01-02", periods=60)


def bars(tickers: str = "AB", days: pd.DatetimeIndex = DAYS) -> pd.DataFrame:
    one = pd.DataFrame({"date": days, "open": 10.0, "high": 11.0, "low": 9.0, "close": 10.0, "volume": 5.0})
    return pd.concat([one.assign(ticker=name) for name in tickers], ignore_index=True)


def made(folder: Path, source: pd.DataFrame, *join: Path | str) -> pd.DataFrame:
    choices = Choices(join=tuple(map(str, join)))
    prepare(written(folder / "source.csv", source), folder / "bars.parquet", choices=choices)
    return pd.read_parquet(folder / "bars.parquet").astype({"ticker": str})


def own(rows: pd.DataFrame, name: str, ticker: str = "A") -> list[float]:
    return rows[rows["ticker"] == ticker][name].tolist()


def test_further_numbers_are_kept_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = bars().assign(**{"Mkt Cap (USD)": "1,234.5", "P/E": np.nan, "Sector": "x", "Shares": 7, "Note": "y"})
    source.loc[0, "P/E"], source.loc[source["ticker"] == "B", "Sector"] = 12.5, "n/a"
    words = ["prepare", str(written(tmp_path / "source.csv", source)), str(tmp_path / "bars.parquet"), "--overwrite"]
    assert main(words) == 0
    rows = pd.read_parquet(tmp_path / "bars.parquet")
    assert list(rows.columns[7:]) == ["mkt_cap_usd", "p_e", "sector", "shares"]
    assert set(own(rows, "sector")) == {*sector_numbers(["x"])} and np.isnan(own(rows, "sector", "B")).all()
    assert set(rows["mkt_cap_usd"]) == {1234.5} and rows["p_e"].notna().sum() == 1 and rows["p_e"][0] == 12.5
    shown = capsys.readouterr().out
    assert "further columns, with their coverage: mkt_cap_usd 100.0%, p_e 0.8%, sector 50.0%, shares 100.0%" in shown
    for keep, left in (("shares", ["shares"]), ("none", [])):
        assert main([*words, "--keep", keep]) == 0
        assert list(pd.read_parquet(tmp_path / "bars.parquet").columns[7:]) == left
    assert main([*words, "--keep", "share"]) == 2
    assert "--keep: expected columns of the files, got 'share'; the nearest is 'shares'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "title", ["Target", "fwd_ret_5", "nextDayReturn", "y", "lead1", "Zielwert", "目标收益", "будущий доход"]
)
def test_a_title_that_names_the_future_is_asked_about(title: str, tmp_path: Path) -> None:
    source = bars().assign(**{title: 0.5, "leader": 1.0, "yield": 2.0})
    with refused(f"column '{title}' is named as values of the future are.*--keep"):
        made(tmp_path, source)
    name = title.casefold().replace(" ", "_")
    wanted = Choices(keep=(name,)), Choices(columns=(f"ignore={title}",))
    for place, (choices, left) in enumerate(zip(wanted, ([name], ["leader", "yield"]), strict=True)):
        prepare(tmp_path / "source.csv", tmp_path / f"{place}.parquet", choices=choices)
        assert sorted(pd.read_parquet(tmp_path / f"{place}.parquet").columns[7:]) == left


def test_names_of_bars_are_not_taken(tmp_path: Path) -> None:
    source = bars().assign(last=3.0, Vol=4.0, **{"CLOSE ": 5.0, "": range(120), "Unnamed: 0": range(120)})
    rows = made(tmp_path, source)
    assert sorted(rows.columns[7:]) == ["last", "other_close", "vol"] and rows["other_close"].eq(5).all()


def test_a_row_counts_from_the_day_on_which_it_is_known(tmp_path: Path) -> None:
    rows_of_a = "A,2019-12-31,2020-01-07,1.5\nA,2020-03-31,2020-01-11,2.5\n"
    eps = written(tmp_path / "eps.csv", f"ticker,date,known,eps\n{rows_of_a}Z,2019-12-31,2020-01-02,9\n")
    rows = made(tmp_path, bars(), eps)
    np.testing.assert_array_equal(own(rows, "eps")[:10], [np.nan] * 3 + [1.5] * 4 + [2.5] * 3)
    np.testing.assert_array_equal(own(rows, "eps_age")[:10], [np.nan] * 3 + [0, 1, 2, 3, 0, 1, 2])
    assert rows[rows["ticker"] == "B"]["eps"].isna().all()


def test_a_lag_in_days_after_the_rows_own_date(tmp_path: Path) -> None:
    eps = written(tmp_path / "eps.csv", "symbol,date,eps\na,2020-01-02,1.5\n")
    rows = made(tmp_path, bars(), f"{eps}:5")
    np.testing.assert_array_equal(own(rows, "eps")[:5], [np.nan] * 3 + [1.5] * 2)


def test_a_series_of_the_market_is_that_of_all_tickers(tmp_path: Path) -> None:
    series = pd.DataFrame({"Date": DAYS[:40], "Close": np.arange(40) + 0.5}).drop(index=[3])
    rows = made(tmp_path, bars(), written(tmp_path / "vix.csv", series))
    for ticker in "AB":
        found = own(rows, "vix_close", ticker)
        assert found[:6] == [0.5, 1.5, 2.5, 2.5, 4.5, 5.5]
        assert found[39] == 39.5 and np.isnan(found[-1])  # a daily series that ends is not known for ever
    assert rows["close"].eq(10).all() and "vix_close_age" not in rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ticker,date,eps\nA,2019-12-31,1\nA,2020-03-31,2\n", "look ahead; .* a column 'known' of dates, or a lag"),
        ("date,gdp\n2020-01-01,1.5\n2020-02-01,1.5\n2020-03-01,1.5\n", "rows on .*% of the sessions"),
        ("date,f\nsoon,1\n2020-01-02,1\n", "1 columns of numbers, and 1 dates in 2 rows"),
        ("ticker,date,eps\nQ,2020-01-02,1\n", "no row of a ticker that the bars have"),
        ("date,name of it\n2020-01-02,x\n", "0 columns of numbers, and 1 dates in 1 rows"),
        ("date,f,sector\n2020-01-02,1,x\n2020-01-03,1,y\n", "no column of tickers, but 'sector'"),
        ("date,f\n" + "".join(f"{day:%Y-%m-%d},1.234\n" for day in DAYS), "--decimal . or --decimal ,"),
        (
            "date,f\n" + "".join(f"{day},1\n{day},2\n" for day in DAYS[:10]),
            "rows of one date with different numbers; give",
        ),
        ("hello\n", "no rows"),
    ],
)
def test_what_would_look_ahead_or_is_unclear_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with refused(words):
        made(tmp_path, bars(), written(tmp_path / "other.csv", text))
    assert not (tmp_path / "bars.parquet").exists()


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    series = written(tmp_path / "f.csv", pd.DataFrame({"date": DAYS, "f": 1.0}))
    with refused(r"expected new names of columns in .*, got 'f'"):
        made(tmp_path, bars().assign(f=1), series)
    with refused("no readable file"):
        made(tmp_path, bars(), tmp_path / "none.csv")


@given(data=st.data())
@settings(max_examples=10)
def test_the_future_changes_no_earlier_row(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("causal")
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    daily = pd.DataFrame({"date": DAYS, "vix": rng.standard_normal(60)})
    sparse = pd.DataFrame({"date": pd.date_range("2019-10-01", periods=24, freq="7D"), "ticker": "A"})
    sparse["eps"] = rng.standard_normal(24)
    sparse["known"] = sparse["date"] + pd.to_timedelta(rng.integers(1, 60, 24), unit="D")
    sparse = sparse[rng.random(24) < 0.6]
    lagged = sparse.assign(lagged=1.0)[["date", "lagged"]]
    last = DAYS[data.draw(st.integers(5, 58))]
    rows = []
    for cut in (pd.Timestamp.max, last):
        known = {"eps": sparse[sparse["known"] <= cut], "vix": daily[daily["date"] <= cut]}
        known["lagged"] = lagged[lagged["date"] <= cut - pd.Timedelta(days=30)]
        if any(frame.empty for frame in known.values()):
            return
        files = [written(folder / f"{name}.csv", frame) for name, frame in known.items()]
        rows.append(made(folder, bars(), *files[:2], f"{files[2]}:30"))
    whole, short = [frame[frame["date"] <= last.date()] for frame in rows]
    pd.testing.assert_frame_equal(whole[["eps", "vix", "lagged"]], short[["eps", "vix", "lagged"]])


def test_appended_days_have_the_same_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old days stay as they are, also those of whole numbers, as something else may have written them."""
    source, target = bars().assign(pe=np.arange(120.0)), tmp_path / "bars.parquet"
    header, known = "ticker,known,date,eps\n", "A,2020-01-06,2019-12-31"
    eps = written(tmp_path / "eps.csv", f"{header}{known},1.5\n")
    before = made(tmp_path, source[source["date"] < DAYS[40]], eps)
    pd.read_parquet(target).astype({"pe": np.int64}).to_parquet(target)
    written(eps, f"{header}{known},7.5\nA,2020-03-02,2020-01-31,2.5\n")
    written(tmp_path / "new.csv", source[source["date"] >= DAYS[38]])
    words = ["prepare", str(tmp_path / "new.csv"), str(target), "--append"]
    assert main(words) == 2
    assert "got other ones (eps, eps_age, pe and pe); give the same with --keep" in capsys.readouterr().err
    assert main([*words, "--join", str(eps)]) == 0
    after = pd.read_parquet(target).astype({"ticker": str})
    old = after[after["date"] < DAYS[40].date()].reset_index(drop=True)
    pd.testing.assert_frame_equal(old, before)
    assert own(after, "eps")[-1] == 2.5 and own(after, "pe")[-1] == 59.0
    StockDataLoader(target).load_and_prepare()

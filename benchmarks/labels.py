"""Labels of the future among honest scores: how many are refused (`training.forecasts.look_ahead`).

    python -m benchmarks.labels --seed 1
    python -m benchmarks.labels --seed 5 --data FILE.parquet --investable FILE.txt

Each kind of built-in market is drawn once, or nine spans of a file of bars are taken, with 290 to 1,500 days looked at.
Labels are returns from close to close or from open to open over 1 to 60 sessions, up to five sessions late, with noise
to a correlation of 0.3. Honest are rule, oracle and latent drift of a kind, and functions of prices: past returns,
volatilities, levels, gaps, extremes, and noise that lasts or does not; each as it is and up to 20 sessions late, some
with noise.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from data.synthetic.built_in import synthetic_market
from data.synthetic.kinds import PLANTED_KINDS, oracle_scores, rule_scores
from training.forecasts.look_ahead import LookAhead, look_ahead
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

_IC, _LABELS, _HOLDING = 0.3, 6, 20
Scores = Mapping[str, Float64Array]
"""(days, n) by name."""


def unit(values: Float64Array) -> Float64Array:
    """Return (days, n) values of mean 0 and deviation 1 on each day."""
    deviation = np.nanstd(values, axis=1, keepdims=True)
    return np.asarray((values - np.nanmean(values, axis=1, keepdims=True)) / np.where(deviation > 0, deviation, np.nan))


def label(price: Float64Array, rng: np.random.Generator) -> tuple[str, Float64Array]:
    """Return the name and the values of a label of (days, n) prices."""
    late, sessions, logs = int(rng.integers(6)), int(rng.integers(1, 61)), np.log(price)
    returns = np.full(price.shape, np.nan)
    returns[: -late - sessions] = logs[late + sessions :] - logs[late : len(logs) - sessions]
    noise = np.sqrt(1 / _IC**2 - 1) * rng.standard_normal(price.shape)
    return f"label of {sessions} sessions, {late} late", unit(returns) + noise


def of_prices(open_: Float64Array, close: Float64Array, rng: np.random.Generator) -> Scores:
    """Return what is known of prices at each close, and noise."""
    logs, noise = pd.DataFrame(np.log(close)), pd.DataFrame(rng.standard_normal(close.shape))
    returns, gap = logs.diff(), pd.DataFrame(np.log(open_)) - logs.shift()
    frames = {
        **{f"return of {w}": returns.rolling(w).sum() for w in (1, 2, 5, 20, 60, 120, 250)},
        **{f"volatility of {w}": returns.rolling(w).std() for w in (20, 60)},
        "largest of 20": returns.rolling(20).max(),
        "skewness of 60": returns.rolling(60).skew(),
        "to the year's high": logs - logs.rolling(250).max(),
        "gap": gap,
        "session": returns - gap,
        "price": logs,
        "noise": noise,
        "lasting noise": noise.ewm(halflife=10).mean(),
    }
    return {name: frame.to_numpy() for name, frame in frames.items()}


def shifted(known: Scores, rng: np.random.Generator) -> dict[str, Float64Array]:
    """Return scores as they are and late, some with noise."""
    scores = dict[str, Float64Array]()
    for name, values in known.items():
        for late in (0, int(rng.integers(1, 21))):
            score = pd.DataFrame(values).shift(late).to_numpy()
            if rng.random() < 1 / 3:
                score = unit(score) + rng.choice([0.5, 1.0, 3.0]) * rng.standard_normal(score.shape)
            scores[f"{name}, {late} late"] = score
    return scores


def built_in(seed: int, rng: np.random.Generator) -> Iterator[tuple[str, int, Float64Array, Float64Array, Scores]]:
    """Yield kinds of markets with the days to look at, (days, n) opens and closes, and the scores of who knows them."""
    for place, kind in enumerate(PLANTED_KINDS):
        config = SyntheticConfig(kind=kind, days=1500)
        market, n = synthetic_market(config, 1000 * seed + place), config.stocks
        known = {
            "rule": rule_scores(config, market.bars, _HOLDING)[:, :n],
            "oracle": oracle_scores(config, market.drift, _HOLDING)[:, :n],
            "drift": market.drift[:, :n],
        }
        yield kind, int(rng.choice([290, 600, 1400])), market.open[:, :n], market.close[:, :n], known


def of_file(data: Path, investable: Path | None) -> Iterator[tuple[str, int, Float64Array, Float64Array, Scores]]:
    """Yield spans of a file of bars, about whose returns nobody knows anything."""
    bars = pd.read_parquet(data)
    if investable is not None:
        bars = bars[bars["ticker"].isin(investable.read_text().split())]
    bars = bars.assign(ticker=bars["ticker"].astype(str))
    open_, close = (
        bars.pivot(index="date", columns="ticker", values=name).to_numpy(float) for name in ("open", "close")
    )
    for days in (290, 600, 1500):
        for last in np.linspace(len(close) // 3, len(close), 3, dtype=int).tolist():
            yield f"{days} days to row {last}", days, open_[:last], close[:last], {}


def main() -> None:
    """Draw, look and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="parquet file of bars, in place of built-in markets")
    parser.add_argument("--investable", type=Path, help="file of its tickers, one a line")
    asked = parser.parse_args()
    rng, counts = np.random.default_rng(asked.seed), {"labels": np.zeros(3, int), "honest": np.zeros(3, int)}
    largest = dict[str, float]()
    markets = of_file(asked.data, asked.investable) if asked.data else built_in(asked.seed, rng)
    for name, days, open_, close, known in markets:
        prices = (close, np.vstack((open_[1:], np.full_like(open_[:1], np.nan))))
        with np.errstate(all="ignore"):
            drawn = {"labels": dict(label(prices[draw % 2], rng) for draw in range(_LABELS))}
            drawn["honest"] = shifted({**known, **of_prices(open_, close, rng)}, rng)
            for what, scores in drawn.items():
                found = look_ahead({key: one[-days:] for key, one in scores.items()}, open_[-days:], close[-days:])
                counts[what] += count(name, what, found)
                for key in known if what == "honest" else ():
                    if (one := found[f"{key}, 0 late"]).most_ic < 0.9:  # not shared by all stocks
                        largest[key] = max(largest.get(key, 0.0), abs(one.session.ic))
    for what, (number, refused, warned) in counts.items():
        print(f"{what}: {number} drawn, {refused} refused, {warned} warned of")
    if largest:
        print("largest rank IC with a session:", ", ".join(f"{name} {ic:.2f}" for name, ic in largest.items()))


def count(market: str, what: str, found: dict[str, LookAhead]) -> Float64Array:
    """Return how many were drawn, refused and warned of; print those of which the other was right."""
    for name, one in found.items():
        if bool(one.reason) != (what == "labels"):
            print(f"{market}: {name}: {one.reason or one.warning or 'nothing is told'}")
    told = (sum(bool(getattr(one, word)) for one in found.values()) for word in ("reason", "warning"))
    return np.array([len(found), *told])


if __name__ == "__main__":
    main()

"""Labels of the future among honest scores: how many are refused (`training.forecasts.look_ahead`).

    python -m benchmarks.labels --seed 1

Each kind of built-in market is drawn once, with 290 to 1,400 days looked at. Labels are returns from close to close or
from open to open over 1 to 60 sessions, up to five sessions late, with noise to a correlation of 0.3. Honest are rule,
oracle and latent drift of the kind, past returns, volatility, volume, prices, and noise that lasts or does not, each as
it is and up to 20 sessions late, a third of them with noise.
"""

import argparse

import numpy as np
import pandas as pd

from data.synthetic.draw import SyntheticMarket, synthetic_market
from data.synthetic.planted import PLANTED_KINDS, oracle_scores, rule_scores
from training.forecasts.look_ahead import LookAhead, look_ahead
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

_IC, _LABELS, _HOLDING = 0.3, 6, 20


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


def honest_scores(
    market: SyntheticMarket, config: SyntheticConfig, rng: np.random.Generator
) -> dict[str, Float64Array]:
    """Return honest scores of a market by name."""
    close, n = market.close, market.stocks
    returns, noise = pd.DataFrame(np.log(close)).diff(), rng.standard_normal(close.shape)
    known = {
        "rule": rule_scores(config, market.bars, _HOLDING),
        "oracle": oracle_scores(config, market.drift, _HOLDING),
        "drift": market.drift,
        **{f"return of {w}": returns.rolling(w).sum().to_numpy() for w in (1, 5, 20, 60)},
        "volatility": returns.rolling(20).std().to_numpy(),
        "volume": market.volume,
        "price": close,
        "noise": noise,
        "lasting noise": pd.DataFrame(noise).ewm(halflife=10).mean().to_numpy(),
    }
    scores = dict[str, Float64Array]()
    for name, values in known.items():
        for late in (0, int(rng.integers(1, 21))):
            score = pd.DataFrame(values[:, :n]).shift(late).to_numpy()
            if rng.random() < 1 / 3:
                score = unit(score) + rng.choice([0.5, 1.0, 3.0]) * rng.standard_normal(score.shape)
            scores[f"{name}, {late} late"] = score
    return scores


def main() -> None:
    """Draw, look and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    seed, counts = parser.parse_args().seed, {"labels": np.zeros(3, int), "honest": np.zeros(3, int)}
    rng = np.random.default_rng(seed)
    for place, kind in enumerate(PLANTED_KINDS):
        config = SyntheticConfig(kind=kind, days=1500)
        market, days = synthetic_market(config, 1000 * seed + place), int(rng.choice([290, 600, 1400]))
        close, open_ = (prices[:, : market.stocks] for prices in (market.close, market.open))
        prices = (close, np.vstack((open_[1:], np.full_like(open_[:1], np.nan))))
        with np.errstate(all="ignore"):
            drawn = {"labels": dict(label(prices[draw % 2], rng) for draw in range(_LABELS))}
            drawn["honest"] = honest_scores(market, config, rng)
            for what, scores in drawn.items():
                found = look_ahead({name: one[-days:] for name, one in scores.items()}, open_[-days:], close[-days:])
                counts[what] += count(kind, what, found)
    for what, (drawn_, refused, warned) in counts.items():
        print(f"{what}: {drawn_} drawn, {refused} refused, {warned} warned of")


def count(kind: str, what: str, found: dict[str, LookAhead]) -> Float64Array:
    """Return how many were drawn, refused and warned of; print those of which the other was right."""
    for name, one in found.items():
        if bool(one.reason) != (what == "labels"):
            print(f"{kind}: {name}: {one.reason or one.warning or 'nothing is told'}")
    return np.array(
        [len(found), *(sum(bool(getattr(one, word)) for one in found.values()) for word in ("reason", "warning"))]
    )


if __name__ == "__main__":
    main()

"""Policies of your own, scores and target weights, judged as the champion is, without any training.

python -m examples.judged_policy
python main.py evaluate --policy examples/judged_policy.py:momentum
"""

import numpy as np
import pandas as pd

from data.features.wide import WideBars
from training.api import judge, load_market

SETTINGS = {
    "synthetic.kind": "momentum",
    "synthetic.days": 1200,
    "synthetic.stocks": 10,
    "env.trading_days": 30,
    "env.settlement_days": 10,
    "evaluation.rivals": "none",
}
"""Of a small market with short episodes and without learned rivals, so that it takes seconds."""


def momentum(bars: WideBars) -> pd.DataFrame:
    """Score stocks by their log returns over 20 sessions: the higher, the more is held."""
    return np.log(bars.close).diff(20)


def equal_risk(bars: WideBars) -> pd.DataFrame:
    """Return target weights in proportion to one over the volatility of a quarter; what is left is cash."""
    volatility = np.log(bars.close).diff().rolling(63, min_periods=21).std()
    return (1 / volatility).div((1 / volatility).sum(axis=1), axis=0).fillna(0.0)


equal_risk.returns = "weights"  # type: ignore[attr-defined]


def main() -> None:
    """Judge them on the validation days of a small built-in market."""
    market = load_market(settings=SETTINGS)
    judgement = judge(market, {"mine": momentum, "steady": equal_risk}, variants=3)
    print(judgement.table[["return", "sharpe", "turnover", "rank_ic_1"]].round(2))
    for name, sentence in judgement.verdict.items():
        print(f"{name}: {sentence}")


if __name__ == "__main__":
    main()

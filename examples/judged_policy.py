"""A policy of your own, judged as the champion is, without any training.

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
    """Score stocks by their log returns over 20 sessions: above 0 asks for a stock, the largest first."""
    return np.log(bars.close).diff(20)


def main() -> None:
    """Judge it on the validation days of a small built-in market."""
    market = load_market(settings=SETTINGS)
    judgement = judge(market, {"mine": momentum}, variants=3)
    print(judgement.table[["return", "sharpe", "trades", "rank_ic_1"]].round(2))
    print(judgement.verdict["mine"])


if __name__ == "__main__":
    main()

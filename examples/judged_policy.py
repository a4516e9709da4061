"""A policy of your own, judged as the champion is, without any training.

python -m examples.judged_policy
python main.py evaluate --policy examples/judged_policy.py:momentum
"""

import numpy as np
import pandas as pd

from data.features.wide import WideBars
from training.api import judge, load_market


def momentum(bars: WideBars) -> pd.DataFrame:
    """Score stocks by their log returns over 20 sessions: above 0 asks for a stock, the largest first."""
    return np.log(bars.close).diff(20)


def main() -> None:
    """Judge it on the validation days of a small built-in market."""
    market = load_market(settings={"synthetic.kind": "momentum", "synthetic.days": 2000, "synthetic.stocks": 20})
    judgement = judge(market, {"mine": momentum}, variants=3)
    print(judgement.table[["return", "sharpe", "trades", "rank_ic"]].round(2))
    print(judgement.verdict["mine"])


if __name__ == "__main__":
    main()

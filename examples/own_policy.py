"""A policy of your own in the trading environment: hold the five stocks that have risen most over 20 sessions.

python -m examples.own_policy
"""

import numpy as np
from numpy.typing import NDArray

from data.market import Market
from data.synthetic.built_in import built_in_market
from environment.trading_env import TradingEnvironment, windows_from
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

LOOKBACK, WEIGHT = 20, 0.2


def momentum_action(market: Market, day: int) -> NDArray[np.float32]:
    """Return the target weights at the close of a day: equal ones of the stocks with the largest past returns."""
    columns = market.investable_columns
    past = (market.close[day] / market.close[day - LOOKBACK])[columns]
    action = np.zeros(len(columns), dtype=np.float32)
    action[np.argsort(-np.nan_to_num(past))[: round(1 / WEIGHT)]] = WEIGHT
    return action


def main() -> None:
    """Play one episode on validation days and print its summary."""
    rules = EnvironmentConfig()
    market, _ = built_in_market(
        SyntheticConfig(kind="momentum", days=2000, stocks=20), DataConfig(context_window_days=64), rules
    )
    env = TradingEnvironment.on(market, rules)
    _, info = env.reset(seed=0, **windows_from(market.splits.validation.first, rules))
    is_over = False
    while not is_over:
        _, _, is_over, _, info = env.step(momentum_action(market, info["day_index"]))
    for name, value in env.get_episode_summary().items():
        print(f"{name:>20} {value:12.2f}")


if __name__ == "__main__":
    main()

"""A policy of your own in the trading environment: buy the stock that has risen most over 20 sessions.

python -m examples.own_policy
"""

import numpy as np
from numpy.typing import NDArray

from data.market import Market
from data.synthetic.built_in import built_in_market
from environment.trading_env import TradingEnvironment, windows_from
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

LOOKBACK = 20
COEFFICIENT, TARGET_PERCENT = 5.0, 20.0


def momentum_action(market: Market, day: int, candidates: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the action (investable, 2) at the close of a day: order the candidate with the largest past return."""
    action = np.zeros((len(candidates), 2), dtype=np.float32)
    action[:, 1] = TARGET_PERCENT
    past = market.close[day] / market.close[day - LOOKBACK] - 1
    scores = np.where(candidates & np.isfinite(past), past, -np.inf)
    best = int(scores.argmax())
    if scores[best] > 0:
        action[best, 0] = COEFFICIENT
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
        _, _, is_over, _, info = env.step(momentum_action(market, info["day_index"], info["candidates"]))
    for name, value in env.get_episode_summary().items():
        print(f"{name:>20} {value:12.2f}")


if __name__ == "__main__":
    main()

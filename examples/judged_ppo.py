"""PPO of Stable-Baselines3, trained on the registered environment and judged beside the baselines.

pip install stable-baselines3 && python -m examples.judged_ppo
"""

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO

from training.api import ENVIRONMENT_ID, judge, load_market

SETTINGS = {
    "synthetic.kind": "momentum",
    "synthetic.days": 1200,
    "synthetic.stocks": 10,
    "env.trading_days": 30,
    "env.settlement_days": 10,
    "evaluation.rivals": "none",
}
STEPS = 512  # a real training takes millions


def main() -> None:
    """Train for a moment, then judge on validation days."""
    env = gym.make(ENVIRONMENT_ID, settings=SETTINGS)
    env = gym.wrappers.RescaleAction(gym.wrappers.FlattenObservation(env), np.float32(-1), np.float32(1))
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, n_epochs=1, seed=0, device="cpu")
    model.learn(STEPS)
    judgement = judge(load_market(settings=SETTINGS), {"PPO": model})
    print(judgement.table[["return", "sharpe", "turnover"]].round(2))
    print(judgement.verdict["PPO"])


if __name__ == "__main__":
    main()

"""A model that Stable-Baselines3 saved, judged from its file as it is judged in memory."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest

from main import main
from training.api import ENVIRONMENT_ID, judge, load_market
from utils.config.trader import EvaluationConfig

sb3 = pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed")
SETTINGS = {
    **{"synthetic.kind": "momentum", "synthetic.days": 400, "synthetic.stocks": 4, "split.context_window_days": 16},
    **{"env.trading_days": 20, "env.settlement_days": 5},
}
TOML = "".join(f"{name} = {json.dumps(value)}\n" for name, value in SETTINGS.items())


@pytest.mark.usefixtures("restore_process")
@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
def test_a_saved_model_is_judged_as_in_memory(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = gym.wrappers.FlattenObservation(gym.make(ENVIRONMENT_ID, settings=SETTINGS))
    env = gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=0, device="cpu", policy_kwargs={"net_arch": [8]})
    model.save(tmp_path / "mine.zip")
    (tmp_path / "same.toml").write_text(TOML)
    words = ["evaluate", "--policy", str(tmp_path / "mine.zip"), "--runs-dir", str(tmp_path / "runs")]
    words += ["--rivals", "none", "--random-pickers", "20", "--config"]
    assert main([*words, str(tmp_path / "same.toml")]) == 0
    found = pd.read_csv(tmp_path / "runs" / "judged" / "evaluation-validation" / "mine" / "equity.csv")
    judging = EvaluationConfig(random_pickers=20, rivals="none")
    expected = judge(load_market(settings=SETTINGS), {"mine": model}, judging=judging)
    assert not expected.trades.empty
    np.testing.assert_allclose(found["mine"], expected.equity["mine"], rtol=1e-12)

    capsys.readouterr()
    (tmp_path / "other.toml").write_text(TOML.replace("stocks = 4", "stocks = 6"))
    assert main([*words, str(tmp_path / "other.toml")]) == 2
    said = capsys.readouterr().err
    assert "ERROR" in said and "expected" in said and "Traceback" not in said

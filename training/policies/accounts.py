"""The accounts of policies that are not this program's: scores, trades, functions of bars, and classes that act."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from data.features.own import FIT_BEFORE, described
from environment.trading_env import Observation, TradingEnvironment, windows_from
from training.evaluation.baselines import score_policy
from training.evaluation.play import EvaluationSetup, OwnAccount, account_by
from training.evaluation.stage import Stage
from training.policies.score_rule import asked_and_done, limit_warning, require_wanted, rule_of, rule_text
from training.policies.trades import Trades, account_of_trades
from training.rollout import step_by
from utils.arrays import Float32Array
from utils.errors import DataError
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

logger = logging.getLogger(__name__)


def account_of(name: str, policy: Any, stage: Stage) -> OwnAccount:
    """Play a policy's account on the windows of a stage.

    Args:
        policy: a function of wide bars, which is audited first; a frame of scores; `Trades`; a class or an object with
            `act(observation, info)`; or a model with `predict(observation)`, as those of Stable-Baselines3.

    Raises:
        DataError: it fails, looks ahead, or asks for nothing on these days.
    """
    if hasattr(policy, "act") or hasattr(policy, "predict"):
        return _account_of_actor(name, policy, stage.setup)
    if isinstance(policy, Trades):
        return account_of_trades(name, policy, stage.setup)
    setup, rule = stage.setup, rule_of(name, policy, stage.setup.market, stage.env, stage.tuning)
    judged = rule.scores[setup.judged]
    require_wanted(name, judged, setup.market.dates[setup.judged])
    act = score_policy(setup.env, rule, setup.judged)
    account = account_by(setup, lambda step: step_by(setup.env, act, step), judged.astype(np.float64))
    logger.info("%s; %d trades on these days", rule_text(name, rule, setup.market), len(account.trades))
    if said := limit_warning(name, rule, setup.env.orders_per_day, setup.judged):
        logger.warning("%s", said)
    return replace(account, asked=asked_and_done(rule, account, setup))


class _Predictor:
    """A model of Stable-Baselines3 as a policy; its spaces may be flattened, and its actions rescaled."""

    def __init__(self, model: Any, env: TradingEnvironment) -> None:
        self.model, self.env = model, env

    def act(self, observation: Mapping[str, Float32Array], info: Mapping[str, Any]) -> Float32Array:
        """Return the action (investable, 2) of the model's mode."""
        seen: Any = dict(observation)
        if not isinstance(self.model.observation_space, gym.spaces.Dict):
            seen = gym.spaces.flatten(self.env.observation_space, seen)
        action, _ = self.model.predict(seen, deterministic=True)
        space, wanted = self.model.action_space, self.env.action_space
        assert isinstance(wanted, gym.spaces.Box)
        low, high = (np.reshape(edge, wanted.shape) for edge in (space.low, space.high))
        part = (np.reshape(action, wanted.shape) - low) / (high - low)
        return np.asarray(wanted.low + part * (wanted.high - wanted.low), dtype=np.float32)


def _account_of_actor(name: str, policy: Any, setup: EvaluationSetup) -> OwnAccount:
    """Play a policy that acts on observations: one object for each window if it is a class, else the same for all."""
    env = TradingEnvironment.on(setup.market, setup.env.rules, account=setup.env)
    if not hasattr(policy, "act"):
        policy = _Predictor(policy, env)
    try:
        actors = [policy() if isinstance(policy, type) else policy for _ in range(len(setup.starts))]
        observation, info, targets = Observation(), dict[str, Any](), list[torch.Tensor]()

        def act(step: int) -> None:
            nonlocal observation, info
            if step == 0:
                observation, info = env.reset(**windows_from(setup.starts.cpu().numpy(), setup.env.rules))
            actions = [actor.act(_lane(observation, lane), _lane(info, lane)) for lane, actor in enumerate(actors)]
            observation, *_, info = env.step(np.stack(actions))
            target = torch.from_numpy(np.stack(actions)[..., 1]).double()
            targets.append(target.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT))

        account = account_by(setup, act)
        if setup.env.rules.exits == "target":
            return account
        # Of what was bought the ledger has the last target only.
        plan, moves = account.purchases, torch.stack(targets).to(setup.env.device)
        first = moves.gather(2, plan.stock.transpose(1, 2)).transpose(1, 2)
        return replace(account, purchases=replace(plan, target_percent=first, moves=moves))
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"expected an action {env.action_space.shape} of policy {name!r}, got {described(error)}; mend it"
            f"{f', or {FIT_BEFORE}' if hasattr(policy, 'fit') else ''}"
        ) from error


def _lane(values: Mapping[str, Any], lane: int) -> dict[str, Any]:
    return {name: value[lane] if isinstance(value, np.ndarray) else value for name, value in values.items()}

"""The accounts of policies that are not this program's: scores, weights, trades, and classes that act."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.features.own import FIT_BEFORE, OwnFeature, audit_features, described, own_columns
from data.market import Market
from environment.portfolio import Policy
from environment.trading_env import TradingEnvironment
from training.evaluation.baselines import BandRule, Tuning
from training.evaluation.play import APART, EvaluationSetup, GivenWeights, Played, best_of, play_policy
from training.forecasts.look_ahead import require_past
from training.policies.read import WEIGHTS, aligned, is_rows, wide_table
from training.policies.trades import GivenTrades, Trades
from utils.arrays import DateArray, Float32Array, Float64Array
from utils.errors import DataError, LookAheadError
from utils.tables import many

logger = logging.getLogger(__name__)
_MOST_GROSS, _MUCH = 10.0, 2.0
"""Most weights of a day in the sum, without their signs: more are percents; and those that may be."""
_EXCESS = 1e-4
"""By which weights may miss their bounds, as sums in single precision do."""


def account_of(name: str, policy: Any, setup: EvaluationSetup, hold: int | None = None) -> Played:
    """Play a policy's account on the judged days.

    Args:
        policy: a function of wide bars, which is audited first, or a frame, of scores or target weights; `Trades`; a
            class or an object with `act(observation, info)`; or a model with `predict(observation)`, as those of
            Stable-Baselines3.
        hold: number of stocks with the best scores of the day that are held in equal weights; default: the band.

    Raises:
        DataError: it fails, looks ahead, or asks for nothing on the judged days.
    """
    if hasattr(policy, "act") or hasattr(policy, "predict"):
        return _account_of_actor(name, policy, setup)
    is_frame, market = isinstance(policy, pd.DataFrame), setup.market
    if is_frame and is_rows(policy):
        policy = wide_table(policy, repr(name))
    if is_frame:
        policy = policy.rename(columns=market.spelled(policy.columns))
        if (twice := policy.columns.duplicated()).any():
            one = policy.columns[twice][0]
            raise DataError(f"expected one column of a ticker in {name!r}, got two of {one}; keep one")
    if isinstance(policy, Trades):
        given = GivenTrades(policy, setup)
        played = play_policy(setup, given)
        logger.info("%s", given.how)
        return _with_asked(played, how=given.how, notes=given.notes(played), refused=given.refused)
    table, notes = table_of(name, policy, market), list[str]()
    played = account_of_table(name, table, setup, hold, is_weights=is_weights(policy))
    assert played.asked is not None
    how, gap = played.asked.how, played.asked.gap
    if is_frame:
        tickers = [market.tickers[column] for column in market.investable_columns]
        other = policy.columns.difference(tickers)
        if len(other):
            notes.append(f"{len(other):,} of {len(policy.columns):,} tickers cannot be bought here, as {other[0]}.")
            if is_weights(policy):  # what was to be held in them, until something else was asked for
                elsewhere = pd.DataFrame(aligned(name, policy, market, other)).ffill().abs().sum(axis=1)
                gap += float(elsewhere[setup.judged].mean())
        if is_weights(policy) and policy.notna().any(axis=1).any():
            of_rows, kept = (float(part.sum(axis=1).max()) for part in (policy, policy.ffill()))
            if kept > (1.0 + APART) * max(1.0, of_rows):
                notes.append(f"Empty cells keep what is held, so that weights add up to {kept:.2f} at most; 0 sells.")
        dates, judged = (int(part.any(axis=1).sum()) for part in (policy.notna(), np.isfinite(table[setup.judged])))
        how += f" Read: {many(dates, 'date')}, {judged:,} of them judged, {many(len(policy.columns), 'ticker')}."
    logger.info("%s", how)
    return _with_asked(played, how=how, gap=gap, notes=[*notes, *played.asked.notes])


def account_of_table(
    name: str, table: Float64Array, setup: EvaluationSetup, hold: int | None, *, is_weights: bool
) -> Played:
    """Play (days, n) scores or target weights, as `account_of` does. Raises DataError where no scores differ."""
    if is_weights:
        weights, begun = in_force(table, setup.judged)
        much = _require_shares(name, weights[setup.judged])
        needs_credit = is_signed(weights[setup.judged])
        played = play_policy(setup, GivenWeights(weights), setup.signed if needs_credit else None)
        long, short = (played.held.clip(*edges).sum(axis=2).mean() for edges in ((0.0, None), (None, 0.0)))
        sizes = f"{long:.0%} long and {abs(short):.0%} short in the mean"
        borrowed = f": {sizes}, at {setup.borrow_bps:g} basis points a year"
        is_ruined = bool((played.curves.equity <= 0).any())
        notes = [*begun, *["The account lost everything, and was closed."] * is_ruined, *much]
        return _with_asked(played, how=f"Target weights, held as they are given{borrowed * needs_credit}.", notes=notes)
    begun = list[str]()
    if hold is None:
        rule, how = rule_of(name, table, setup.tuning, setup.market.dates, setup.judged)
        followed: Policy = rule.policy(setup.tuning.risk)
    else:
        how = f"{name}: equal weights of the {many(hold, 'stock')} with the best scores, anew on each day with scores."
        weights, begun = in_force(best_of(table, hold, setup.can_be_bought), setup.judged)
        followed = GivenWeights(weights)
    played = play_policy(setup, followed)
    return _with_asked(replace(played, scores=table[setup.judged]), how=how, notes=begun)


def _with_asked(played: Played, **said: Any) -> Played:
    """Return an account with what is said of how it was asked."""
    assert played.asked is not None
    return replace(played, asked=replace(played.asked, **said))


class _Predictor:
    """A model of Stable-Baselines3 as a policy; its spaces may be flattened, and its actions rescaled."""

    def __init__(self, model: Any, env: TradingEnvironment) -> None:
        self.model, self.env = model, env

    def act(self, observation: Mapping[str, Float32Array], info: Mapping[str, Any]) -> Float32Array:
        """Return the action (investable,) of the model's mode."""
        seen: Any = dict(observation)
        if not isinstance(self.model.observation_space, gym.spaces.Dict):
            seen = gym.spaces.flatten(self.env.observation_space, seen)
        action, _ = self.model.predict(seen, deterministic=True)
        space, wanted = self.model.action_space, self.env.action_space
        assert isinstance(wanted, gym.spaces.Box)
        low, high = (np.reshape(edge, wanted.shape) for edge in (space.low, space.high))
        part = (np.reshape(action, wanted.shape) - low) / (high - low)
        return np.asarray(wanted.low + part * (wanted.high - wanted.low), dtype=np.float32)


def _account_of_actor(name: str, policy: Any, setup: EvaluationSetup) -> Played:
    """Play a policy that acts on observations of an environment over all judged days; of a class, a new object."""
    env = TradingEnvironment.on(setup.market, setup.portfolio.rules, portfolio=setup.portfolio)
    if not hasattr(policy, "act"):
        policy = _Predictor(policy, env)
    last = setup.judged.stop
    try:
        actor = policy() if isinstance(policy, type) else policy
        observation, info = env.reset(start_idx=setup.first, end_idx=last, trading_end_idx=last)
        env.account.is_flat_at_end = False
        is_over = False
        while not is_over:
            observation, _, is_over, _, info = env.step(actor.act(observation, info))
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"expected an action {env.action_space.shape} of policy {name!r}, got {described(error)}; mend it"
            f"{f', or {FIT_BEFORE}' if hasattr(policy, 'fit') else ''}"
        ) from error
    return Played.of(setup, setup.portfolio, np.stack(env.episode_actions).astype(np.float64))


def is_weights(policy: Any) -> bool:
    """Tell whether a function, by its attribute `returns`, or a frame, by `attrs["returns"]`, gives target weights."""
    returns = policy.attrs.get("returns") if isinstance(policy, pd.DataFrame) else getattr(policy, "returns", None)
    return bool(returns == WEIGHTS)


def table_of(name: str, policy: Any, market: Market) -> Float64Array:
    """Return a policy's (days, n) scores or target weights of the investable stocks.

    Args:
        policy: a frame of days by tickers, or a function of wide bars, which is audited first.

    Raises:
        DataError: it fails or looks ahead.
    """
    if isinstance(policy, pd.DataFrame):
        values = aligned(name, policy, market)
        if (day := np.isinf(values).any(axis=1)).any():
            raise DataError(
                f"expected finite scores or weights of {name!r}, got an infinite one on "
                f"{market.dates[day][0]}; leave empty what is not known"
            )
    else:
        try:
            audit_features({name: policy}, market, np.random.default_rng(0))
        except LookAheadError as error:
            # The commonest strategy of the field asks for it.
            last = "; which session is a month's last is known on the next one: rebalance on the first, or give a file"
            raise LookAheadError(f"{error}{last if is_weights(policy) else ''}") from error
        values = values_of_function(name, policy, market)
    require_past({name: values.astype(np.float32)}, market)
    return values


def values_of_function(name: str, function: OwnFeature, market: Market) -> Float64Array:
    """Return what a function of wide bars says of the investable stocks, (days, n).

    Raises DataError where its frame alone says that it holds target weights.
    """
    returned = list[Any]()

    def noted(bars: Any) -> Any:
        returned.append(function(bars))
        return returned[0]

    columns = own_columns({name: noted}, market.wide())[name]
    if is_weights(returned[0]) and not is_weights(function):
        raise DataError(
            f'expected `{name}.returns = "weights"` of a function of target weights, got it of its frame alone; add it'
        )
    return columns[:, market.investable_columns].astype(np.float64)


def is_signed(weights: NDArray[Any]) -> bool:
    """Tell whether (days, n) target weights ask for shorts or leverage."""
    return bool((weights < -_EXCESS).any() or (np.nansum(weights, axis=1) > 1.0 + _EXCESS).any())


def _require_shares(name: str, weights: Float64Array) -> list[str]:
    """Return a note where (days, n) target weights may be percents; DataError where they seem to be."""
    most = float(np.nansum(np.abs(weights), axis=1).max())
    if most > _MOST_GROSS:
        raise DataError(
            f"expected weights of {name!r} as shares of the equity, 0.05 for 5%, got a day on which they add up to "
            f"{most:.3g} without their signs; divide percents by 100"
        )
    return [f"Weights add up to {most:.3g} times the equity without their signs; 5% is 0.05."] * (most > _MUCH)


def in_force(weights: Float64Array, judged: slice) -> tuple[Float64Array, list[str]]:
    """Return (days, n) weights with those of the last day before the judged ones that has any on the first of them,
    if that has none; and a note where no later day has any."""
    has_some = np.asarray(np.isfinite(weights).any(axis=1))
    before = np.flatnonzero(has_some[: judged.start])
    if has_some[judged.start] or not len(before):
        return weights, []
    begun = weights.copy()
    begun[judged.start] = weights[before[-1]]
    note = "It says nothing on the judged days, and holds to their end what it said last before."
    return begun, [] if has_some[judged].any() else [note]


def require_weights(name: str, weights: NDArray[Any]) -> None:
    """Raise DataError where (days, n) target weights ask for shorts or leverage, which only the judge has."""
    if is_signed(weights):
        least, most = float(np.nanmin(weights)), float(np.nansum(weights, axis=1).max())
        got = f"one of {least:.3g}" if least < -_EXCESS else f"a day on which they add up to {most:.3g}"
        raise DataError(
            f"expected target weights of {name!r} from 0 on that add up to at most 1 on each day, got {got}; only "
            "`evaluate` has shorts and leverage: clip weights, or divide each day's by their sum"
        )


def standing(scores: Float64Array) -> Float64Array:
    """Return (days, n) scores that stand until the next day that has any: a day without one has those of before."""
    has_some = np.isfinite(scores).any(axis=1)
    last = np.maximum.accumulate(np.where(has_some, np.arange(len(scores)), -1))
    return np.where(last[:, None] >= 0, scores[last], np.nan)


def rule_of(name: str, table: Float64Array, tuning: Tuning, dates: DateArray, days: slice) -> tuple[BandRule, str]:
    """Return how scores are held, tuned on training days as those of ridge and LightGBM are, and the same in words.

    Args:
        table: (days, n) scores, which stand as in `standing`.
        dates: of all days.
        days: on which they are played.

    Raises:
        DataError: no two stocks have different scores on a day of these.
    """
    scores = standing(table)
    if not any(np.ptp(row[np.isfinite(row)]) for row in scores[days] if np.isfinite(row).any()):
        first, last = dates[days][[0, -1]]
        raise DataError(
            f"expected scores of {name!r} that differ between stocks from {first} to {last}, got "
            f"{np.isfinite(scores[days]).sum():,} scores, none different; the higher a score, the more is held, and "
            f'target weights need `{name}.returns = "weights"`'
        )
    rule = tuning.tuned(scores.astype(np.float32))
    is_tuned = np.array_equal(rule.scores, scores.astype(np.float32), equal_nan=True)
    how = "tuned on" if is_tuned else "without scores of"
    return rule, (
        f"{name}: a unit of score is worth {rule.unit:.3g}%, price of risk {rule.risk:g}, at most {rule.largest:.0%} "
        f"in a stock, or twice its part of the benchmark, {how} training days."
    )

"""How scores and target weights of anybody become an account, wherever they are played."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.own import OwnFeature, audit_features, own_columns
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.play import Played
from training.evaluation.rules import BandRule, Tuning
from training.forecasts.look_ahead import require_past
from training.policies.read import WEIGHTS, aligned
from utils.arrays import Float64Array
from utils.errors import DataError
from utils.metrics import TRADING_DAYS_PER_YEAR

_EXCESS = 1e-4
"""By which weights may miss their bounds, as sums in single precision do."""


def is_weights(policy: Any) -> bool:
    """Tell whether a function, by its attribute `returns`, or a frame, by `attrs["returns"]`, gives target weights."""
    returns = policy.attrs.get("returns") if isinstance(policy, pd.DataFrame) else getattr(policy, "returns", None)
    return bool(returns == WEIGHTS)


def table_of(name: str, policy: Any, market: Market) -> Float64Array:
    """Return a policy's (days, n) scores or target weights of the investable stocks.

    Args:
        policy: a frame of days by tickers, or a function of wide bars, which is audited first.

    Raises:
        DataError: it fails or looks ahead, or weights ask for shorts or leverage.
    """
    if isinstance(policy, pd.DataFrame):
        values = aligned(name, policy, market)
    else:
        audit_features({name: policy}, market, np.random.default_rng(0))
        values = values_of_function(name, policy, market)
    require_past({name: values.astype(np.float32)}, market)
    if is_weights(policy):
        require_weights(name, values)
    return values


def values_of_function(name: str, function: OwnFeature, market: Market, stop: int | None = None) -> Float64Array:
    """Return what a function of wide bars says of the investable stocks, (days, n).

    Args:
        stop: day up to which it is given data, that one excluded; default: all.
    """
    columns = own_columns({name: function}, market.wide(stop=stop))[name]
    return columns[:, market.investable_columns].astype(np.float64)


def require_weights(name: str, weights: NDArray[Any]) -> None:
    """Raise DataError where (days, n) target weights ask for shorts or leverage, which no account has."""
    least, most = float(np.nanmin(weights)), float(np.nansum(weights, axis=1).max())
    if least < -_EXCESS or most > 1.0 + _EXCESS:
        got = f"one of {least:.3g}" if least < -_EXCESS else f"a day on which they add up to {most:.3g}"
        raise DataError(
            f"expected target weights of {name!r} from 0 on that add up to at most 1 on each day, got {got}; accounts "
            "are never short and do not borrow: clip weights, or divide each day's by their sum"
        )


def rule_of(name: str, scores: Float64Array, tuning: Tuning, dates: NDArray[np.datetime64], days: slice) -> BandRule:
    """Return how scores are held: tuned on training days, as those of ridge and LightGBM are.

    Args:
        dates: of all days.
        days: on which they are played.

    Raises:
        DataError: no two stocks have different scores on a day of these.
    """
    if not any(np.ptp(row[np.isfinite(row)]) for row in scores[days] if np.isfinite(row).any()):
        first, last = dates[days][[0, -1]].astype("datetime64[D]")
        raise DataError(
            f"expected scores of {name!r} that differ between stocks from {first} to {last}, got "
            f"{np.isfinite(scores[days]).sum():,} scores, none different; the higher a score, the more is held"
        )
    return tuning.tuned(scores.astype(np.float32))


def rule_text(name: str, rule: BandRule, scores: Float64Array) -> str:
    """Say how scores are held, and whether that was tuned on training days."""
    is_tuned = np.array_equal(rule.scores, scores.astype(np.float32), equal_nan=True)
    return (
        f"{name}: a unit of score is worth {rule.unit:.3g}%, price of risk {rule.risk:g}, at most {rule.largest:.0%} "
        f"in a stock, {'tuned on' if is_tuned else 'without scores of'} training days"
    )


class GivenWeights:
    """The policy that holds (days, n) target weights as they are given, NaN keeps; it notes what it asked."""

    def __init__(self, weights: Float64Array) -> None:
        self.weights, self.asked = torch.from_numpy(weights), list[Tensor]()

    def __call__(self, portfolio: Portfolio) -> Tensor:
        """Return the weights of today."""
        account = portfolio.account
        target = self.weights[account.day.cpu()].to(account.device)
        self.asked.append(torch.where(target.isnan(), account.weights[:, : target.shape[1]], target))
        return target


def asked_and_done(asked: list[Tensor], played: Played) -> str:
    """Say how far an account is from the (1, n) weights that it was asked to hold on each day."""
    wanted = torch.cat(asked).cpu().numpy()
    before, held = (part[:, 0, : wanted.shape[1]] for part in (played.before, played.held))
    years = len(wanted) / TRADING_DAYS_PER_YEAR
    turnover = [0.5 * np.abs(part - before).sum() / years for part in (wanted, held)]
    gap = 0.5 * np.abs(held - wanted).sum(axis=1).mean()
    return (
        f"Asked: a turnover of {turnover[0]:.1f} a year; done: {turnover[1]:.1f}. On the mean day {gap:.1%} of the "
        "equity was elsewhere than asked."
    )

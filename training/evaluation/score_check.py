"""What scores without code look like beside the future: how much of their skill is new, and what that would take."""

from dataclasses import dataclass

import numpy as np
import scipy  # submodules, which take a second to import, are loaded when they are used

from training.forecasts.skill import correlation, explained_share, rank_correlation
from utils.arrays import Float64Array

TOO_GOOD = 0.1
"""Share that is explained above which scores have probably seen what follows: rules and oracles of all built-in markets
stay below it, and past returns that are dated a day early, or returns of the next days, do not."""
_TOO_GOOD_IC = 0.6
"""Rank IC above which they have too, as returns until the end of the trade do, and no oracle does."""


@dataclass(frozen=True)
class ScoreCheck:
    """The rank correlation of scores with what follows them, of today's and of yesterday's; NaN where unknown."""

    rank_ic: float
    """With the results of trades that are ordered at the close of the score."""
    stale_rank_ic: float
    """The same of scores that are a day old."""
    persistence: float
    """Rank correlation of the scores of a day with those of the day before."""
    explained: float
    """Largest share of the variance of the next session's moves, by their ranks, that is explained by scores, or by
    what is new in them since the day before; from 0 to 1."""

    @property
    def suspicion(self) -> str:
        """Return a warning where scores are better than they can be without knowing the future; else nothing."""
        if self.explained > TOO_GOOD:
            what = f"what is new in scores explains {100 * self.explained:.0f} % of the next session's moves"
        elif self.rank_ic > _TOO_GOOD_IC:
            what = f"scores have a rank IC of {self.rank_ic:.2f}"
        else:
            return ""
        return (
            f"Expected scores that know the past only, but {what}: more than it can tell; look for values dated early."
        )

    @property
    def sentence(self) -> str:
        """Return what was found in words, with what it cannot show."""
        expected = self.persistence * self.rank_ic
        return (
            f"Scores without code cannot be audited, only looked at beside the future. Their rank IC is "
            f"{self.rank_ic:.3f}; a day late it is {self.stale_rank_ic:.3f}, where a persistence of "
            f"{self.persistence:.2f} a day would leave {expected:.3f}. At most {100 * self.explained:.0f} % of "
            "the next session's moves are explained by them or by what is new in them each day; above "
            f"{100 * TOO_GOOD:.0f} % values are probably dated early. A model that was fitted to these days, stocks "
            "that were chosen in hindsight, and a leak as weak as honest skill cannot be seen in this way."
        )


def check_scores(scores: Float64Array, moves: Float64Array, results: Float64Array) -> ScoreCheck:
    """Compare (days, n) scores with the next session's moves and with the results of trades that they order.

    A score that is known follows from the past, so that it changes by what happened on its day: news that foretell the
    next session far better than any market allows were taken from it.
    """
    ranks = _ranks(scores)
    stale, fresh = ranks[:-1], ranks[1:]
    persistence = _mean(correlation(fresh, stale))
    news = np.vstack((np.full_like(ranks[:1], np.nan), fresh - np.nan_to_num(persistence) * stale))
    news[news == 0] = np.nan  # of a day on which nothing was new
    moved = _ranks(moves)
    return ScoreCheck(
        rank_ic=_mean(rank_correlation(scores, results)),
        stale_rank_ic=_mean(rank_correlation(scores[:-1], results[1:])),
        persistence=persistence,
        explained=max(explained_share(news, moved), explained_share(ranks, moved)),
    )


def _ranks(values: Float64Array) -> Float64Array:
    """Return the ranks of the (days, n) values of each day, from -1/2 to 1/2; NaN where there is none."""
    count = np.maximum(np.isfinite(values).sum(axis=1, keepdims=True), 1)
    known = np.where(np.isfinite(values), values, np.nan)
    return np.asarray((scipy.stats.rankdata(known, axis=1, nan_policy="omit") - 0.5) / count - 0.5)


def _mean(daily: Float64Array) -> float:
    return float(np.nanmean(daily)) if np.isfinite(daily).any() else float("nan")

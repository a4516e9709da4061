"""Impulse responses of daily returns, estimated session by session by local projections.

The response at each lag is a regression of its own, so that no shape is assumed (Jorda 2005, "Estimation and inference
of impulse responses by local projections"). Three kinds of impulse are tried: an own move of some size
(events), a move of a column that may not be bought (leaders), and an own move while a column's short trend was up or
down (states). A term is kept if it is significant after correcting for all candidates of its kind.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from data.features.bank import exponential_mean, log_returns, stock_blocks
from data.features.leaders import SESSIONS, after_leaders, bound, last_sum, later, leader_terms, ratio
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array, in_order

EVENT_SESSIONS = (1, 3, 20)
"""Horizons over which responses to events are summed: they separate a jump that reverts from a drift that lasts."""
EVENT_EDGES = (-6.0, -4.0, -3.0, -2.75, -2.5, -2.25, -2.0, -1.5, -1.0, 1.0, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 4.0, 6.0)
"""Edges of the bins of own moves, in standard deviations: finer in the tails, where responses start at an unknown
threshold, and wide beyond them, for jumps. Moves within one deviation, two days of three, are no events: the linear
inputs cover them."""
STATE_HALF_LIVES = (2, 8, 32)
"""Half-lives of a column's trend, from days to two months."""

_NO_EVENT = len(EVENT_EDGES) // 2
_VOLATILITY_HALF_LIFE = 128
"""Days; slow, so that one event does not raise the threshold of the next."""
_LEAST_WEIGHT = 1.0 - 0.5 ** (19.5 / _VOLATILITY_HALF_LIFE)
"""Least total weight of a volatility: that of the last 20 days, up to rounding."""
_LEAST_VOLATILITY = 1e-4
_LARGEST_IN_VOLATILITY = 3.0
"""Clip of moves in the volatility, standard deviations: one jump must not hide the events of a year."""
_LARGEST_ANSWER = 8.0
"""Clip of responses to events, standard deviations."""
_LARGEST_MOVE = 4.0
"""Clip of moves for leaders and states, standard deviations: a few extreme days must not make a term."""
_MOST_STATES = 4
"""Most states per lag."""
_Events = tuple[NDArray[np.int8], Float64Array, BoolArray]
"""Bins of own moves, moves as possible responses in standard deviations, and where there is one; (days, stocks)
each."""


@dataclass(frozen=True)
class Responses:
    """Responses estimated on learned days; leaders and states that are not significant are left out."""

    mean: Float64Array
    """(columns,) mean of the daily log returns."""
    scale: Float64Array
    """(columns,) standard deviation of the daily log returns; 0 for a column that never moved."""
    market_scale: Float64Array
    """(1,) root mean square of the mean standardised return of the investable stocks."""
    event: Float64Array
    """(sessions, bins) response to an own move, in standard deviations of the stock; row 0 is the next session."""
    event_t: Float64Array
    """(sessions, bins) t-statistics of the responses before shrinkage."""
    leader_terms: Int64Array
    """(terms, 3) sessions, place of the stock among the investable ones, column of the leader; see `leader_terms`."""
    leader_loadings: Float64Array
    """(terms,) standard deviations of the stock for one of the leader."""
    state_terms: Int64Array
    """(terms, 3) sessions, column of the state (0: mean of the stocks, then the context columns), half-life's place."""
    state_loadings: Float64Array
    """(terms,) response to an own move at a state of 1, as a share of the move; it has the state's sign."""

    @classmethod
    def fit(cls, close: Float32Array, investable: Int64Array, learned: BoolArray) -> Self:
        """Estimate the responses from (days, columns) closes, NaN where there is no bar, and (n,) investable columns.

        Only returns of (days,) `learned` days are read, for impulses, responses, volatilities and trends. The return of
        day t is from the close of t - 1 to the close of t.
        """
        days = up_to_the_last(learned)
        close, learned = close[days], learned[days]
        shape, context = (len(close), len(investable)), np.setdiff1d(np.arange(close.shape[1]), investable)
        mean, scale = np.zeros((2, close.shape[1]))
        moves, is_moved = np.empty(shape, order="F"), np.empty(shape, dtype=bool, order="F")

        def moves_of(columns: Int64Array) -> tuple[Float64Array, BoolArray, Float64Array]:
            returns, is_move = _one_day_moves(close[:, columns], learned)
            mean[columns], scale[columns] = _moments(returns, is_move)
            return returns, is_move, _standardised(returns, is_move, mean[columns], scale[columns])

        def events_of(block: slice) -> _Events:
            returns, is_move, moves[:, block] = moves_of(investable[block])
            is_moved[:, block] = is_move
            return _events(returns, is_move, _volatility(returns, is_move)[:-1])

        event, event_t = _event_answers([*in_order(events_of, stock_blocks(*shape))])
        *_, leaders = moves_of(context)
        market = _mean_move((moves[:, block], is_moved[:, block]) for block in stock_blocks(*shape))
        market_scale = np.sqrt((market**2).sum(axis=0) / np.maximum(is_moved.any(axis=1).sum(), 1))
        led, led_loadings = leader_terms(leaders, moves, is_moved)
        led[:, 2] = context[led[:, 2]]
        states = _state_terms(moves, is_moved, _state_columns(leaders, market, market_scale))
        return cls(mean, scale, market_scale, event, event_t, led, led_loadings, *states)

    def forecaster(self, close: Float32Array, investable: Int64Array, days: slice) -> Callable[[slice], Float32Array]:
        """Return a function that forecasts blocks of stocks: log returns in percent, (days, stocks, 7).

        These are of events over the next 1, 3 and 20 sessions, scaled by the stock's volatility at t, then of leaders
        and of states, each over the next session and the next 20, scaled by that of the learned days. Row t depends on
        closes up to t only. The columns of `close` are those of the fit.

        Args:
            days: that are forecast.
        """
        blocks = stock_blocks(len(close), len(investable))
        close = close[: days.stop]
        market = _mean_move(in_order(lambda block: self._moves(close, investable[block])[:2], blocks))
        context = np.setdiff1d(np.arange(close.shape[1]), investable)
        leaders = self._moves(close, context)[0]
        trends = self._state_trends(_state_columns(leaders, market, self.market_scale))

        def forecast_of(block: slice) -> Float32Array:
            columns = investable[block]
            moves, is_move, returns = self._moves(close, columns)
            after_states = np.zeros((*moves.shape, 2))
            for sessions, weight in trends.items():
                answers = moves * weight
                after_states[..., 0] += later(answers, sessions - 1)
                after_states[..., 1] += last_sum(answers, sessions)
            events, scale = self._after_events(returns, is_move, days), self.scale[columns][:, None]
            others = (scale * after[days] for after in (self._after_leaders(leaders, context, block), after_states))
            return 100 * np.concatenate((events, *others), axis=2, dtype=np.float32)

        return forecast_of

    def _moves(self, close: Float32Array, columns: Int64Array) -> tuple[Float64Array, BoolArray, Float64Array]:
        """Return the (days, columns) moves of some columns in standard deviations, where there is one, and the log
        returns."""
        returns, is_move = _one_day_moves(close[:, columns])
        return _standardised(returns, is_move, self.mean[columns], self.scale[columns]), is_move, returns

    def _after_events(self, returns: Float64Array, is_move: BoolArray, days: slice) -> Float64Array:
        """Sum the future responses to past own moves, (all days, n): (days, n, 3) log returns."""
        volatility = _volatility(returns, is_move)
        start = max(0, days.start - SESSIONS + 1)
        bins = _events(returns, is_move, volatility[:-1])[0][start:].astype(np.intp)
        volatility = volatility[1 + start :]
        total = np.empty((days.stop - days.start, returns.shape[1], len(EVENT_SESSIONS)))
        for place, sessions in enumerate(EVENT_SESSIONS):
            # Contiguous: strided sums take twice as long.
            answer = np.zeros(bins.shape)
            for age in range(min(SESSIONS, len(bins))):
                pending = self.event[age : age + sessions].sum(axis=0)
                answer[age:] += pending[bins[: len(bins) - age]]
            total[..., place] = (answer * volatility)[days.start - start :]
        return total

    def _after_leaders(self, leaders: Float64Array, context: Int64Array, block: slice) -> Float64Array:
        """Sum the future answers of a block of stocks to past moves of (days, context) leaders: (days, stocks, 2)."""
        sessions, stock, column = self.leader_terms.T
        is_here = (stock >= block.start) & (stock < block.stop)
        terms = np.column_stack((sessions, stock - block.start, np.searchsorted(context, column)))[is_here]
        return after_leaders(leaders, block.stop - block.start, terms, self.leader_loadings[is_here])

    def _state_trends(self, columns: Float64Array) -> dict[int, Float64Array]:
        """Return the (days, 1) answer to an own move by sessions, from (days, 1 + context) columns' moves."""
        trends = dict[int, Float64Array]()
        for (sessions, column, place), loading in zip(self.state_terms.tolist(), self.state_loadings, strict=True):
            answer = loading * _trend(columns[:, column : column + 1], STATE_HALF_LIVES[place])
            trends[sessions] = trends.get(sessions, 0.0) + answer
        return trends


def up_to_the_last(learned: BoolArray) -> slice:
    """Return the days up to the last of the (days,) learned ones, the first if there is none: later teach nothing."""
    return slice(0, 1 + max(np.flatnonzero(learned).tolist(), default=0))


def _one_day_moves(close: Float32Array, learned: BoolArray | None = None) -> tuple[Float64Array, BoolArray]:
    """Return the (days, columns) log returns, and which of them are moves of one day, on learned days if given.

    The first bar after a gap carries the change of many days, and is no move.
    """
    has_bar = np.isfinite(close)
    is_move = has_bar & later(has_bar, 1)
    if learned is not None:
        is_move &= learned[:, None]
    return log_returns(close), is_move


def _moments(returns: Float64Array, is_move: BoolArray) -> tuple[Float64Array, Float64Array]:
    """Return the (columns,) mean and standard deviation of the moves."""

    def total(values: Float64Array) -> Float64Array:
        # Day by day, also of a single column: its bits do not depend on the columns beside it.
        last: Float64Array = values.cumsum(axis=0)[-1]
        return last

    days = np.maximum(is_move.sum(axis=0), 1)
    mean = total(np.where(is_move, returns, 0.0)) / days
    scale = np.sqrt(total(np.where(is_move, returns - mean, 0.0) ** 2) / days)
    return mean, np.where(scale > _LEAST_VOLATILITY, scale, 0.0)


def _standardised(returns: Float64Array, is_move: BoolArray, mean: Float64Array, scale: Float64Array) -> Float64Array:
    """Return (days, columns) clipped moves in standard deviations, 0 where there is none."""
    is_known = is_move & (scale > 0.0)
    moves = np.divide(returns - mean, scale, out=np.zeros(returns.shape), where=is_known)
    return np.clip(moves, -_LARGEST_MOVE, _LARGEST_MOVE, out=moves)


def _volatility(returns: Float64Array, is_move: BoolArray) -> Float64Array:
    """Return the (days + 1, n) standard deviations of clipped moves, row t from days before t; 0 where unknown.

    Each move is clipped by the plain standard deviation of the moves before it.
    """
    plain = _plain_volatility(returns, is_move)[:-1]
    bound = np.where(plain > 0.0, _LARGEST_IN_VOLATILITY * plain, np.inf)
    return _plain_volatility(np.clip(returns, -bound, bound), is_move)


def _plain_volatility(returns: Float64Array, is_move: BoolArray) -> Float64Array:
    """Return (days + 1, n) standard deviations of the moves, row t from days before t; 0 where too few are known.

    Days without a move do not change it.
    """
    weight = exponential_mean(is_move.astype(np.float64), _VOLATILITY_HALF_LIFE)
    variance = exponential_mean(np.where(is_move, returns, 0.0) ** 2, _VOLATILITY_HALF_LIFE)
    is_known = (weight >= _LEAST_WEIGHT) & (variance > _LEAST_VOLATILITY**2 * weight)
    volatility = np.zeros((len(returns) + 1, returns.shape[1]))
    volatility[1:][is_known] = np.sqrt(variance[is_known] / weight[is_known])
    return volatility


def _events(returns: Float64Array, is_move: BoolArray, volatility: Float64Array) -> _Events:
    """Return the own moves of a block of stocks, scaled by the (days, n) volatility before them."""
    is_answer = is_move & (volatility > 0.0)
    answer = np.divide(returns, volatility, out=np.zeros(returns.shape), where=is_answer)
    bins = np.digitize(answer, EVENT_EDGES).astype(np.int8)
    return bins, np.clip(answer, -_LARGEST_ANSWER, _LARGEST_ANSWER, out=answer), is_answer


def _event_answers(events: Sequence[_Events]) -> tuple[Float64Array, Float64Array]:
    """Estimate the (sessions, bins) responses to the moves of all stocks, shrunk, and their t-statistics.

    The test sums by day, since returns of one day are correlated.
    """
    days, width = len(events[0][0]), len(EVENT_EDGES) + 1
    level = sum(answer[known].sum() for _, answer, known in events) / max(sum(known.sum() for *_, known in events), 1)
    count, daily = np.zeros((SESSIONS, width)), np.zeros((SESSIONS, days, width))
    for block, answers, known in events:
        stocks, bins = block.shape[1], block.ravel()
        event = np.flatnonzero(bins != _NO_EVENT)
        bins = bins[event].astype(np.intp)
        cell = event // stocks * width + bins
        is_answer = known.ravel().astype(np.float64)
        answer = answers.ravel() - level * is_answer
        for lag in range(1, min(SESSIONS + 1, days)):
            left = days - lag
            some = slice(np.searchsorted(event, left * stocks))
            later = event[some] + lag * stocks
            count[lag - 1] += np.bincount(bins[some], is_answer[later], width)
            sums = np.bincount(cell[some], answer[later], left * width)
            daily[lag - 1, :left] += sums.reshape(left, width)
    mean, t = np.zeros((2, SESSIONS, width))
    for row in range(min(SESSIONS, days - 1)):
        of_day = daily[row, : days - 1 - row]
        total = of_day.sum(axis=0)
        mean[row], t[row] = ratio(total, count[row]), ratio(total, np.sqrt((of_day**2).sum(axis=0)))
    mean[:, _NO_EVENT] = t[:, _NO_EVENT] = 0.0
    return mean * _kept(t), t


def _kept(t: Float64Array) -> Float64Array:
    """Return the shrinkage factor of each (sessions, bins) response: 1 if it is significant.

    The others are shrunk by James and Stein (1961), "Estimation with quadratic loss", over the sessions of a bin, and
    each by its own t-statistic: responses are often a single session long.
    """
    whole = np.clip(1.0 - len(t) * ratio(np.ones(t.shape[1]), (t**2).sum(axis=0)), 0.0, 1.0)
    single = 1.0 - 1.0 / np.maximum(t**2, 1.0)
    return np.where(np.abs(t) > bound(t.size - len(t)), 1.0, whole * single)


def _mean_move(blocks: Iterable[tuple[Float64Array, BoolArray]]) -> Float64Array:
    """Return the (days, 1) mean of the moves of all stocks, given block by block."""
    sums = [[part.sum(axis=1, keepdims=True) for part in block] for block in blocks]
    total, moves = (sum(terms) for terms in zip(*sums, strict=True))
    return np.asarray(total / np.maximum(moves, 1))


def _state_columns(leaders: Float64Array, market: Float64Array, market_scale: Float64Array) -> Float64Array:
    """Return (days, 1 + context) standardised moves of the mean of the stocks, then of the other columns."""
    return np.concatenate((market / np.where(market_scale > 0.0, market_scale, 1.0), leaders), axis=1)


def _trend(columns: Float64Array, half_life: float) -> Float64Array:
    """Return the recent trend of (days, n) standardised columns, from -1 to 1.

    Scaled by the standard deviation under independent moves, so that half-lives are comparable.
    """
    kept = 0.5 ** (1.0 / half_life)
    spread = np.sqrt((1.0 - kept) / (1.0 + kept))
    trend: Float64Array = np.tanh(exponential_mean(columns, half_life) / spread)
    return trend


def _state_terms(moves: Float64Array, is_move: BoolArray, columns: Float64Array) -> tuple[Int64Array, Float64Array]:
    """Select the states in which stocks continue or revert their moves, the most significant first.

    Returns terms and loadings. The test sums by day, since products of one day are correlated.
    """
    trends = np.concatenate([_trend(columns, half_life) for half_life in STATE_HALF_LIVES], axis=1)
    squared, least = trends**2, bound(SESSIONS * trends.shape[1])
    weights, products = np.zeros((2, SESSIONS, len(moves)))
    for block in stock_blocks(*moves.shape):
        block_moves, is_block_move = np.ascontiguousarray(moves[:, block]), np.ascontiguousarray(is_move[:, block])
        for lag in range(1, min(SESSIONS + 1, len(moves))):
            weights[lag - 1, :-lag] += (is_block_move[lag:] * block_moves[:-lag] ** 2).sum(axis=1)
            products[lag - 1, :-lag] += (block_moves[lag:] * block_moves[:-lag]).sum(axis=1)
    terms, loadings = [], []
    for lag in range(1, min(SESSIONS + 1, len(moves))):
        trend, trend2 = trends[:-lag], squared[:-lag]
        weight, product = weights[lag - 1, :-lag], products[lag - 1, :-lag]
        # A response that does not depend on the state would make slow trends look significant.
        product -= weight * ratio(product.sum(keepdims=True), weight.sum(keepdims=True))
        for _ in range(_MOST_STATES):
            total = product @ trend
            t = np.abs(ratio(total, np.sqrt(product**2 @ trend2)))
            place = int(t.argmax())
            if t[place] <= least:
                break
            loading = total[place] / (weight @ trend2[:, place])
            product -= loading * weight * trend[:, place]
            half_life, column = divmod(place, columns.shape[1])
            terms.append((lag, column, half_life))
            loadings.append(loading)
    return np.array(terms, dtype=np.int64).reshape(-1, 3), np.array(loadings, dtype=np.float64)

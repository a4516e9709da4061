"""The contents of a report at full scale: five windows of 145 sessions, ten policies, 25 generations."""

from __future__ import annotations

import numpy as np

from training.evaluation.page.contents import (
    METRICS,
    Bias,
    CostSensitivity,
    Dates,
    Difference,
    EquityCurves,
    Estimate,
    ExitReason,
    FitnessHistory,
    FloatArray,
    HoldoutLook,
    Overfitting,
    PolicyResult,
    ReportContents,
    RunFacts,
    Trade,
    TradedStock,
    Verdict,
    monthly_returns,
)
from utils import metrics

WINDOWS, SESSIONS, CAPITAL = 5, 145, 100_000.0
POLICIES = (
    "champion",
    "elite 1",
    "elite 2",
    "random picker",
    "equal weight",
    "buy and hold",
    "60-day momentum",
    "5-day reversal",
)
TICKERS = ("MSFT", "BRK.B", "XOM", "NVDA", "KO", "BF.B")
REASONS: tuple[ExitReason, ...] = ("target", "time", "end", "lost")
COSTS = (0.0, 5.0, 10.0, 25.0, 50.0)


def report_contents(
    *, name: str = "calm-heron-0417", tickers: tuple[str, ...] = TICKERS, seed: int = 7
) -> ReportContents:
    """Everything that a page can show, drawn from `seed`; `name` and `tickers` appear wherever a run's would."""
    generator = np.random.default_rng(seed)
    dates = sessions("2019-01-02", WINDOWS * SESSIONS)
    drifts = (0.0005, 0.00046, 0.0003, 0.0004, 0.00042, 0.00044, 0.00055, 0.0001)
    curves = {policy: walk(generator, len(dates), drift) for policy, drift in zip(POLICIES, drifts, strict=True)}
    pickers = np.stack([walk(generator, len(dates), drift) for drift in generator.normal(0.0004, 0.0003, 200)])
    low, high = np.percentile(pickers, (5, 95), axis=0)
    curves["random picker"] = pickers.mean(axis=0)
    gains = {policy: float(metrics.total_return_percent(curve)) for policy, curve in curves.items()}
    ahead = {policy: gains["champion"] - gains[policy] for policy in POLICIES[3:]}
    return ReportContents(
        title=f"{name} on the holdout",
        facts=RunFacts(
            name=name,
            seed=seed,
            device="cpu",
            split="holdout",
            first_day=str(dates[0]),
            last_day=str(dates[-1]),
            champion_generation=18,
            data="us_stocks.parquet",
            others={"Windows": f"{WINDOWS} of {SESSIONS} sessions", "Stocks": "108 of 669"},
        ),
        verdict=Verdict(
            f"Not better than the random picker: the champion earned {ahead['random picker']:.1f} percentage points "
            "more, and the 95% interval holds zero.",
            False,
            [Difference(policy, Estimate(gain, gain - 9.5, gain + 11.3)) for policy, gain in ahead.items()],
            caveats=[
                "The champion was chosen on validation windows, among 16 agents and 25 generations.",
                "This is look 3 at the holdout.",
            ],
        ),
        policies=[policy_result(policy, curve, pickers) for policy, curve in curves.items()],
        equity=EquityCurves(
            curves, dates, (low, high), ("random picker",), window_starts=range(0, len(dates), SESSIONS)
        ),
        monthly=monthly_returns(dates, curves["champion"]),
        traded=[traded_stock(generator, ticker, dates) for ticker in tickers],
        costs=CostSensitivity(
            COSTS,
            {
                policy: [
                    Estimate(18 - index - 0.3 * bps, 9 - index - 0.3 * bps, 27 - index - 0.3 * bps) for bps in COSTS
                ]
                for index, policy in enumerate(("champion", "random picker", "60-day momentum"))
            },
            charged_bps=10.0,
        ),
        overfitting=Overfitting(
            0.731, 400, 1.42, 0.38, 12_870, "Daily returns of all agents of the last 8 generations."
        ),
        fitness=fitness(generator, 25),
        memory=memory(generator, 25),
        memory_limit_mb=20_480.0,
        holdout_looks=[
            HoldoutLook("2026-03-02 09:14", 11, f"main.py evaluate --run {name} --split holdout", "+2.4 % a window"),
            HoldoutLook("2026-03-05 17:40", 18, f"main.py evaluate --run {name} --split holdout", "+3.6 % a window"),
            HoldoutLook("2026-03-06 08:02", 18, "main.py walk-forward", "+3.1 % a window"),
        ],
        biases=[
            Bias(
                "Survivors only", "Stocks that left the market are missing. Any long policy looks better than it was."
            ),
            Bias("Rising years", "125-day episodes that hold one random stock paid +6.9% in these years."),
        ],
        settings={
            "population_size": 16,
            "seed": seed,
            "env": {"cost_bps": 5.0, "slippage_bps": 5.0, "fill": "next_open"},
            "cloud": {"uri": "gs://bucket/runs", "access_token": "ya29.SECRET"},
        },
        command=f"python main.py evaluate --run {name} --split holdout",
    )


def sessions(first: str, count: int) -> Dates:
    """(count,) weekdays from `first`."""
    return np.busday_offset(np.datetime64(first), np.arange(count), roll="forward")


def walk(generator: np.random.Generator, days: int, drift: float, volatility: float = 0.009) -> FloatArray:
    """(days,) equity with Gaussian daily logarithmic returns; on the last day they add up to the drift."""
    returns = generator.normal(0.0, volatility, days)
    returns[0] = 0.0
    returns[1:] += drift - returns[1:].mean()
    return np.asarray(CAPITAL * np.exp(np.cumsum(returns)))


def policy_result(policy: str, curve: FloatArray, pickers: FloatArray) -> PolicyResult:
    """Metrics of one curve, or means over those of the pickers; intervals are plausible, not estimated."""
    equity = pickers if policy == "random picker" else curve
    values = {
        "return": float(metrics.total_return_percent(equity).mean()),
        "volatility": float(metrics.annualised_volatility_percent(equity).mean()),
        "sharpe": float(metrics.sharpe(equity).mean()),
        "sortino": float(metrics.sortino(equity).mean()),
        "calmar": float(metrics.calmar(equity).mean()),
        "max_drawdown": float(metrics.max_drawdown_percent(equity).mean()),
        "turnover": 11.3,
        "exposure": 71.8,
        "trades": 1234.0,
        "win_rate": 54.4,
        "holding": 13.6,
        "costs": 2.31,
    }
    if policy in ("equal weight", "buy and hold"):
        values = {key: values[key] for key in list(METRICS)[:6]}
    width = {key: 0.4 * abs(value) + 0.1 for key, value in values.items() if key not in ("trades", "holding")}
    return PolicyResult(
        policy,
        {
            key: Estimate(value, value - width[key], value + width[key]) if key in width else Estimate(value)
            for key, value in values.items()
        },
    )


def traded_stock(generator: np.random.Generator, ticker: str, dates: Dates) -> TradedStock:
    """A price with a trade about every forty sessions and two weeks in which the stock did not trade."""
    close = walk(generator, len(dates), 0.0004, 0.016) / 1000.0
    trades = [trade_at(generator, dates, close, entry) for entry in range(12, len(dates) - 25, 43)]
    close[300:310] = np.nan
    return TradedStock(ticker, dates, close, trades)


def trade_at(generator: np.random.Generator, dates: Dates, close: FloatArray, entry: int) -> Trade:
    """A trade of up to twenty sessions from `entry`."""
    leave = entry + int(generator.integers(2, 20))
    bought, sold = float(close[entry]), float(close[leave])
    reason = REASONS[int(generator.integers(len(REASONS)))]
    return Trade(dates[entry], bought, 1.2 * bought, dates[leave], sold, reason, 100.0 * (sold / bought - 1.0) - 0.2)


def fitness(generator: np.random.Generator, generations: int) -> FitnessHistory:
    """A population that learns; the first generation has no champion yet."""
    mean = 6.0 * (1.0 - np.exp(-np.arange(generations) / 8.0)) - 1.0 + generator.normal(0, 0.4, generations)
    spread = generator.uniform(1.5, 4.0, (2, generations))
    validation = np.maximum.accumulate(0.7 * mean + generator.normal(0, 0.5, generations))
    validation[0] = np.nan
    return FitnessHistory(range(1, generations + 1), mean - spread[0], mean, mean + spread[1], validation)


def memory(generator: np.random.Generator, generations: int) -> list[tuple[str, float, float, float, float]]:
    """Four phases a generation; flat after the second."""
    points, seconds = [("start", 0.0, 410.0, 380.0, 0.0)], 0.0
    for generation in range(generations):
        for phase, lasts in (("evaluate", 6.0), ("train", 61.0), ("evolve", 1.0), ("validate", 5.0)):
            seconds += lasts
            base = 1400.0 - 700.0 * 0.3**generation
            rss = base + (80.0 if phase == "train" else 0.0) + float(generator.normal(0, 6))
            points.append((phase, seconds, rss, rss - 60.0, 0.0))
    return points

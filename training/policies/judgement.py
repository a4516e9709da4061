"""Anybody's policies, judged as the champion is: same fills, costs and limits, baselines, tests and verdict."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from data.market import Market
from data.synthetic.built_in import PlantedScores
from training.commands.table import run_defaults
from training.evaluation.baselines import CHAMPION, NEXT_CLOSE, RANDOM, RESERVED
from training.evaluation.compared import Baselines, at_costs
from training.evaluation.export import SHOWN, record_look, write_evaluation
from training.evaluation.judge import Evaluation, Split
from training.evaluation.permutation_nulls import Praise, redrawn
from training.evaluation.play import EvaluationSetup, account_of_agent
from training.forecasts.skill import HORIZONS
from training.policies.accounts import account_of, account_of_table, is_weights, values_of_function
from training.policies.trades import Trades
from training.run.market import load_market as market_of_settings
from training.run.market import scores_of
from training.run.saved import SavedRun
from utils.config import kinds
from utils.config.settings import from_dict, read_settings
from utils.config.trader import Config, EvaluationConfig
from utils.errors import ConfigError, DataError
from utils.progress import progress
from utils.runs.devices import named_generator
from utils.runs.run_log import REPORT

_MOST_ROWS = 14


@dataclass(frozen=True, repr=False)
class TradedMarket:
    """A market with the settings by which it is traded and judged."""

    market: Market
    config: Config
    planted_scores: PlantedScores | None = None
    """Of a built-in market."""
    device: torch.device | str = "cpu"
    run: SavedRun | None = None
    """The run whose champion is shown beside the policies."""

    def __repr__(self) -> str:
        dates, stocks = self.market.dates, len(self.market.investable_columns)
        return f"TradedMarket({stocks:,} stocks, {dates[0]} to {dates[-1]}, {self.market.splits})"

    @classmethod
    def of_run(cls, run: SavedRun) -> "TradedMarket":
        """Return the market of a run."""
        return cls(run.market, run.config, run.planted_scores, run.device, run)


def load_market(
    data: Path | str | None = None,
    settings: Mapping[str, Any] | Path | str | None = None,
    device: torch.device | str = "cpu",
) -> TradedMarket:
    """Load a market: a parquet file as `prepare` writes it, or by default the one that a training run would have.

    Args:
        settings: by dotted name, as {"env.cost_bps": 20, "synthetic.kind": "ring"}, or a TOML file of them.

    Raises:
        ConfigError, DataError: settings or data cannot be used.
    """
    stated = read_settings(Path(settings)) if isinstance(settings, Path | str) else dict(settings or {})
    stated = {name.replace("-", "_"): value for name, value in stated.items()}
    stated |= {} if data is None else {"data": str(data)}
    config = from_dict({**run_defaults(stated), **stated}, Config)
    return TradedMarket(market_of_settings(config, audits=True), config, scores_of(config), device)


@dataclass(frozen=True, repr=False)
class Judgement:
    """What was judged of each policy, by its name; shown, it is a table and the verdicts."""

    evaluations: Mapping[str, Evaluation]

    def __repr__(self) -> str:
        said, (short, more) = (f"{name}: {sentence}" for name, sentence in self.verdict.items()), self._short
        return "\n".join((short.round(2).to_string(), *more, *said))

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(name)}: {escape(sentence)}</p>" for name, sentence in self.verdict.items())
        short, more = self._short
        return f"{short.to_html(float_format='{:.2f}'.format)}{''.join(more)}{said}"

    @property
    def _short(self) -> tuple[pd.DataFrame, list[str]]:
        """The first rows, those of judged policies and their benchmarks before others, and how many are left out."""
        first = dict.fromkeys((*self.evaluations, *(one.played.benchmark for one in self.evaluations.values())))
        rows = self.table.loc[[*first, *self.table.index.difference([*first], sort=False)], [*SHOWN]]
        return rows[:_MOST_ROWS], [f"... {len(rows) - _MOST_ROWS} more"] * (len(rows) > _MOST_ROWS)

    @property
    def verdict(self) -> dict[str, str]:
        """The verdict on each policy, in a sentence."""
        return {name: evaluation.sentence for name, evaluation in self.evaluations.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each policy and baseline, the measures of `METRICS` as columns, and the rank IC by sessions."""
        rows = dict[str, dict[str, float | None]]()
        for name, evaluation in self.evaluations.items():
            for policy, measures in evaluation.policies.items():
                label = self._label(policy, name)
                ranks = evaluation.coefficients.get(policy, {})
                if policy == name or label not in rows:  # beside others it is shown without its scores
                    values = {key: one.value for key, one in measures.items()}
                    rows[label] = {
                        **values,
                        **{f"rank_ic_{h}": ranks[h].mean if h in ranks else None for h in HORIZONS},
                    }
        return pd.DataFrame.from_dict(rows, orient="index").astype(float).rename_axis("policy")

    @cached_property
    def equity(self) -> pd.DataFrame:
        """Equity, days by policies, under the names of `table`; of random pickers the mean."""
        curves = dict[str, Any]()
        for name, one in self.evaluations.items():
            for policy, equity in one.equity.items():
                curves.setdefault(self._label(policy, name), equity)
        [first, *_] = self.evaluations.values()
        return pd.DataFrame(curves, index=pd.DatetimeIndex(first.dates, name="date"))

    def _label(self, policy: str, judged: str) -> str:
        """Return the name of a row: of what follows a judged policy, beside others, with that one's."""
        return f"{policy}, {judged}" if policy in (RANDOM, NEXT_CLOSE) and len(self.evaluations) > 1 else policy

    @property
    def returns(self) -> pd.DataFrame:
        """Daily returns of the same, as fractions."""
        return self.equity.pct_change().iloc[1:]

    @cached_property
    def weights(self) -> pd.DataFrame:
        """Weights of the judged policies after the fills of a day, days by `policy` and `ticker`; the rest is cash."""
        frames = {
            name: pd.DataFrame(one.played.weights, pd.DatetimeIndex(one.fill_dates, name="date"), one.played.tickers)
            for name, one in self.evaluations.items()
        }
        return pd.concat(frames, axis=1, names=["policy", "ticker"])

    @property
    def trades(self) -> pd.DataFrame:
        """What the policies traded: `value` bought by `policy`, `date` and `ticker`, negative: sold."""
        return self._rows("trades", "date")

    @property
    def positions(self) -> pd.DataFrame:
        """All positions of the policies, from first purchase to last sale, a row each, with the `policy`."""
        return self._rows("positions", "first_date", "last_date")

    def _rows(self, name: str, *dates: str) -> pd.DataFrame:
        rows = pd.concat([getattr(one, name) for one in self.evaluations.values()], ignore_index=True)
        return rows.assign(**{date: pd.to_datetime(rows[date]) for date in dates})

    def save_page(self, folder: Path | str) -> list[Path]:
        """Write page, results, trades, positions and equity of each policy into FOLDER/NAME; return the pages."""
        for name, evaluation in self.evaluations.items():
            place = Path(folder) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            write_evaluation(evaluation, place)
        return [Path(folder) / name / REPORT for name in self.evaluations]


def _require_judgeable(policies: Mapping[str, Any], split: str, spend_look: bool, null: int) -> None:
    require_own_names(policies)
    if not policies:
        raise ConfigError("expected policies to judge, got none; give one by a name")
    if split not in ("validation", "holdout"):
        raise ConfigError(f"expected validation or holdout as split, got {split!r}")
    if split == "holdout":
        kinds.require_spent(spend_look)
    for name, policy in policies.items() if null else ():
        if not callable(policy) or isinstance(policy, type) or hasattr(policy, "act"):
            raise ConfigError(
                f"expected functions of bars with --null, got {name!r}, which is none: nobody knows what it would have "
                "done on other prices; leave --null out"
            )


def require_own_names(names: Iterable[str]) -> None:
    """Raise ConfigError where a name is a baseline's."""
    if taken := RESERVED.intersection(names):
        raise ConfigError(f"expected policies with names of their own, got {min(taken)!r}, a baseline's; rename it")


def judge(
    market: TradedMarket,
    policies: Mapping[str, Any],
    *,
    split: Split = "validation",
    variants: int = 1,
    judging: EvaluationConfig | None = None,
    hold: int | None = None,
    borrow_bps: float = 50.0,
    null: int = 0,
    spend_look: bool = False,
    runs_dir: Path | str = kinds.RUNS,
    command: str = "",
) -> Judgement:
    """Judge policies on the days of a split.

    Args:
        policies: by name; see `account_of` for what they may be.
        variants: of a policy that were tried on the judged days, for which the verdict allows; at least those given.
        judging: number of random pickers, baselines and benchmark; default: the market's settings.
        hold: of scores, number of the best stocks of each day that are held in equal weights; default: the band.
        borrow_bps: fee a year, basis points, on what target weights are short, and on cash that they owe.
        null: markets of the same days drawn again on which functions of bars are judged, too, see `redrawn`.
        spend_look: allow the holdout, a look at which is recorded in the ledger of `runs_dir`.

    Raises:
        ConfigError: a name is a baseline's, a look at the holdout is not allowed, there are no such days, or `null` is
            asked of what is no function of bars.
        DataError: a policy fails or looks ahead.
    """
    _require_judgeable(policies, split, spend_look, null)
    days, config = getattr(market.market.splits, split), market.config
    judging = judging or config.evaluation
    tried = max(variants, len(policies))
    baselines = Baselines.fitted(market.market, market.planted_scores, config, days, judging, market.device)
    setup = replace(baselines.setup, borrow_bps=borrow_bps)
    accounts = {name: account_of(name, policy, setup, hold) for name, policy in policies.items()}
    if market.run is not None:
        accounts[CHAMPION] = account_of_agent(setup, market.run.champion)
    costs = at_costs(setup, accounts)
    baselines, evaluations, draws = replace(baselines, setup=setup), {}, judging.random_pickers
    for name, policy in policies.items():
        played = baselines.beside(name, accounts, draws, named_generator(config.seed, "evaluation"), costs)
        # A policy that traded otherwise on the judged days is another one. Code is searched for leaks by other means.
        digest = hashlib.sha256(accounts[name].curves.equity.round(2).tobytes()).hexdigest()[:8]
        one = Evaluation(
            name=f"{name}-{digest}",
            split=split,
            config=replace(config, evaluation=judging),
            market=market.market,
            played=played,
            trials=tried,
            command=command,
            has_code=not isinstance(policy, pd.DataFrame | Trades),
        )
        if null:
            one = replace(one, null=praise(one, policy, setup, null, draws, hold))
        if split == "holdout":
            Path(runs_dir).mkdir(parents=True, exist_ok=True)
            one = record_look(one, Path(runs_dir))
        evaluations[name] = one
    return Judgement(evaluations)


def praise(
    evaluation: Evaluation, function: Any, setup: EvaluationSetup, markets: int, draws: int, hold: int | None
) -> Praise:
    """Judge a function of bars as it was judged, but on markets where nothing is foretold."""
    told, seed, name = [(False, False)], evaluation.config.seed, evaluation.judged
    for number in progress(range(markets), "Judging null markets", "null market"):
        market = redrawn(evaluation.market, np.random.default_rng([seed, number]))
        again, table = setup.on(market), values_of_function(name, function, market)
        try:
            account = account_of_table(name, table, again, hold, is_weights=is_weights(function))
        except DataError:  # no scores differ, and nothing is claimed
            continue
        generator = named_generator(seed, "evaluation")
        played = Baselines(again, {}).beside(name, {name: account}, draws, generator)
        found = replace(evaluation, market=market, played=played).verdict
        told.append((found.has_skill, found.is_better_than_benchmark))
    return Praise(markets, *(sum(claims) for claims in zip(*told, strict=True)))

"""Aversion to risk: `python -m benchmarks.learning risk [--seeds N] [--aversion A] [--json FILE]`.

Each seed trains with the aversion and without; the champion and the planted rule, with its sizes and at equal ones, are
played on the same windows of unseen paths. Profit is the mean of an episode; the Sharpe ratio is that of the daily
returns of all windows together.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.learning.study import Record, Study, add_study_flags, each_seed, mean_interval, plus_minus, study_config
from benchmarks.learning.unseen import CPU, UnseenPaths, training_market
from training.erl_trainer import build_trainer
from training.evaluation.baselines import CHAMPION, RULE, ScoreRule, score_policy
from training.rollout import play
from utils.config.trader import Config
from utils.runs.seeding import seed_everything
from utils.tables import table

EQUAL_SIZES = "rule at equal sizes"
_PATHS, _SEEDS, _AVERSION = 4, 2, 0.5


def risk_run(config: Config) -> Record:
    """Return profit and Sharpe ratio on unseen paths by policy: of champion and rule."""
    seed_everything(config.seed)
    market, _ = training_market(config)
    trainer = build_trainer(config, market, CPU)
    for _ in trainer.run(config.generations):
        pass
    champion = trainer.champion
    equities: dict[str, list[np.ndarray[Any, np.dtype[np.float64]]]] = {}
    for path in UnseenPaths(paths=_PATHS).each(config, market.stats):
        x, account = champion.inputs.of(path.market), path.env.account
        equities.setdefault(CHAMPION, []).append(path.play_agent(champion, x).equity[:, 0].numpy())
        for name, sizes in ((RULE, path.scores.sizes), (EQUAL_SIZES, None)):
            rule = ScoreRule(path.scores.rule, 2 * config.env.cost_rate, sizes=sizes)
            equities.setdefault(name, []).append(play(account, score_policy(account, rule), path.starts)[1].numpy())
    found: Record = {}
    for name, parts in equities.items():
        equity = np.concatenate(parts, axis=1)
        daily = equity[1:] / equity[:-1] - 1.0
        profit = 100 * float(np.mean(equity[-1] / equity[0] - 1.0))
        found[name] = {"profit": profit, "sharpe": float(np.sqrt(252) * daily.mean() / daily.std())}
    return found


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", _SEEDS)
    parser.add_argument("--aversion", type=float, default=_AVERSION, help=f"default: {_AVERSION}")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Train, play, print the table; on `storms` unless the settings name another kind."""
    config = study_config(["--synthetic.kind", "storms", "--evaluation.evidence", "report", *study.words])
    records = {
        aversion: study.records(
            each_seed(_averse(config, aversion), study.seeds, risk_run, study="risk", aversion=aversion)
        )
        for aversion in (0.0, study.arguments.aversion)
    }
    rows = []
    for name in (CHAMPION, RULE, EQUAL_SIZES):
        for aversion, own in records.items():
            units = ("profit", "sharpe")
            means = {unit: plus_minus(*mean_interval([one[name][unit] for one in own])) for unit in units}
            rows.append({"policy": name, "aversion": f"{aversion:g}", **means})
    print(table(rows, list(rows[0])))


def _averse(config: Config, aversion: float) -> Config:
    return replace(config, learning=replace(config.learning, risk_aversion=aversion))

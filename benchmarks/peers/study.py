"""The study of peers: each learns from the same training path, and is played on the same unseen windows."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pandas as pd

from benchmarks.learning.markets import Budget as Limits
from benchmarks.learning.markets import fit
from benchmarks.learning.study import Experiment, Record, Study, each_seed, mean_interval, plus_minus
from benchmarks.learning.unseen import UnseenPath, UnseenPaths, baselines_job, training_market
from benchmarks.peers.deep.agents import Array, Budget, Learned, Peer, deep_agents, tuned_agents
from benchmarks.speed.harness import MemoryGauge
from data.market import Market
from training.evaluation.baselines import RULE
from utils.config.trader import Config

OURS = "ours"
"""The product's own training at the settings of the study."""
BASELINES = "baselines"
"""All of them at once: rules, ridge regression, LightGBM, the planted rule and the oracle."""
_COLUMNS = ["kind", "seed", "peer", "budget_seconds", "profit", "cpu_seconds", "steps", "rise_mb"]


def peers() -> dict[str, Peer]:
    """Return all peers by name."""
    return {OURS: ours, **deep_agents(), **tuned_agents()}


def ours(config: Config, market: Market, budget: Budget) -> Learned:
    """Train for the generations of the settings; the seconds of the budget are an upper limit."""
    trained = fit(config, market, Limits(budget.seconds / 60, config.generations))
    champion, inputs = trained.trainer.champion, trained.trainer.days.inputs

    def play(path: UnseenPath) -> Array:
        return path.play_champion(champion, inputs.of(path.market))

    return Learned(play, trained.environment_steps)


def peer_job(config: Config, peer: Peer, unseen: UnseenPaths, budget: Budget) -> Record:
    """Let a peer learn and play; return its mean profit, CPU seconds, environment steps and rise of memory."""
    market, _ = training_market(config)
    gauge, started = MemoryGauge(), time.process_time()
    learned = peer(config, market, budget)
    spent, rise_mb = time.process_time() - started, gauge.rise_mb()
    profits = [float(learned.play(path).mean()) for path in unseen.each(config, market.stats)]
    profit = sum(profits) / len(profits)
    return {"profit": profit, "steps": learned.environment_steps, "cpu_seconds": spent, "rise_mb": rise_mb}


def experiments(
    study: Study, kind: str, unseen: UnseenPaths, names: Sequence[str], budgets: Sequence[float]
) -> list[Experiment]:
    """Make a job of each peer and budget, and one of all baselines; what needs no budget is done once."""
    labels, known = {"study": "peers", "kind": kind, **asdict(unseen)}, peers()
    tasks: list[tuple[dict[str, Any], Callable[[Config], Record]]] = [
        ({"peer": BASELINES}, partial(baselines_job, unseen=unseen))
    ]
    for name in names:
        for seconds in (None,) if name == OURS else budgets:
            budget = Budget(math.inf if seconds is None else seconds)
            task = partial(peer_job, peer=known[name], unseen=unseen, budget=budget)
            tasks.append(({"peer": name, "budget_seconds": seconds}, task))
    config = study.config(kind)
    return [job for own, task in tasks for job in each_seed(config, study.seeds, task, **labels, **own)]


def results(records: Sequence[Record]) -> pd.DataFrame:
    """Return a row for each policy, budget and path: profit, and its share of the rule's."""
    flat = [
        {**record, "peer": name, **found}
        for record in records
        for name, found in record.get("policies", {record["peer"]: {}}).items()
    ]
    # A file that was joined of several may hold the baselines of a path more than once.
    frame = pd.DataFrame(flat, columns=_COLUMNS).drop_duplicates(_COLUMNS[:4])
    places = pd.MultiIndex.from_frame(frame[["kind", "seed"]])
    rule = frame[frame["peer"] == RULE].set_index(["kind", "seed"])["profit"].reindex(places).to_numpy()
    return frame.assign(of_rule=frame["profit"] / rule)


def markdown(frame: pd.DataFrame) -> str:
    """Format shares of the rule's profit as a Markdown table, a line for each policy and a column for each kind."""
    kinds, lines = list(frame["kind"].unique()), list[tuple[float, str]]()
    for (peer, _), own in frame.groupby(["peer", "budget_seconds"], dropna=False, sort=False):
        shares = {kind: part["of_rule"].dropna().tolist() for kind, part in own.groupby("kind")}
        cells = [plus_minus(*mean_interval(shares[kind])) if shares.get(kind) else "" for kind in kinds]
        steps, rise_mb = own["steps"].mean(), own["rise_mb"].max()
        ends = (f"{steps:,.0f}" if steps > 0 else "", f"{rise_mb:.0f}" if rise_mb > 0 else "")
        line = f"| {peer} | {own['cpu_seconds'].mean():.0f} | {' | '.join((*cells, *ends))} |"
        lines.append((-float(own["of_rule"].mean()), line))
    heads = ("policy", "learns for, CPU s", *kinds, "steps", "MiB")
    first = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return "\n".join([*first, *(line for _, line in sorted(lines))])

"""The study of peers: each learns from the same training path, and is played on the same unseen windows."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.learning.baselines import fit_baselines
from benchmarks.learning.study import Experiment, Record, mean_interval
from benchmarks.learning.unseen import tuned
from benchmarks.peers.course import Course
from benchmarks.peers.deep.agents import deep_agents, tuned_agents
from benchmarks.peers.deep.finrl import finrl_ddpg
from benchmarks.peers.differentiable import differentiable_rollout
from benchmarks.peers.networks import networks
from benchmarks.peers.optimisers import Population, optimisers
from benchmarks.peers.peer import Budget, Peer
from benchmarks.speed.harness import MemoryGauge
from training.evaluation.baselines import ORACLE, RULE
from utils.config.settings import settings_hash

OURS = "ours"
"""The product's own training at the settings of the course."""
BASELINES = "baselines"
"""All of them at once: rules, ridge regression, LightGBM, and where they are known the planted rule and the oracle."""


def peers() -> dict[str, Peer]:
    """Return all peers by name."""
    deep: dict[str, Peer] = {**deep_agents(), **tuned_agents(), "FinRL's DDPG": finrl_ddpg}
    return {**by_generations(), **networks(), "differentiable rollout": differentiable_rollout, **deep}


def by_generations() -> dict[str, Peer]:
    """Return those that train for the generations of the settings, whatever the budget."""
    return {OURS: Population(networks=True), **optimisers()}


def peer_job(peer: Peer, course: Course, budget: Budget) -> Record:
    """Let a peer learn and play; return its profit by path, CPU seconds, environment steps and rise of memory."""
    market, _ = course.training()
    gauge, started = MemoryGauge(), time.process_time()
    learned = peer(course.config, market, budget)
    spent, rise_mb = time.process_time() - started, gauge.rise_mb()
    profits = [float(learned.play(path).mean()) for path in course.paths(market)]
    return {"by_path": profits, "steps": learned.environment_steps, "cpu_seconds": spent, "rise_mb": rise_mb}


def baselines_job(course: Course) -> Record:
    """Fit and play all baselines; return what `peer_job` does by name."""
    market, scores = course.training()
    planted = {} if scores is None else tuned(market, scores, course.config)
    fitted = fit_baselines(market, course.config)
    found: dict[str, list[float]] = {name: [] for name in (*planted, *fitted)}
    for path in course.paths(market):
        played = path.play_planted(planted) if planted else {}
        played |= {name: path.play_rule(rule(path.market)) for name, (rule, _) in fitted.items()}
        for name, profits in played.items():
            found[name].append(float(profits.mean()))
    seconds = dict.fromkeys(planted, 0.0) | {name: taken for name, (_, taken) in fitted.items()}
    return {"policies": {n: {"by_path": p, "cpu_seconds": seconds[n], "steps": 0} for n, p in found.items()}}


def experiments(course: Course, names: Sequence[str], budgets: Sequence[float]) -> list[Experiment]:
    """Make a job of each peer and budget, and one of all baselines; what needs no budget is done once."""
    key = {"study": "peers", "kind": course.kind, "seed": course.config.seed, **vars(course.unseen)}
    key["settings"] = settings_hash(course.config)[:16]
    known, free = peers(), by_generations()
    jobs = [Experiment({**key, "peer": BASELINES}, partial(baselines_job, course))]
    for name in names:
        if name in free:
            task = partial(peer_job, free[name], course, Budget(math.inf))
            jobs.append(Experiment({**key, "peer": name}, task))
            continue
        for seconds in budgets:
            own = {**key, "peer": name, "budget_seconds": seconds}
            jobs.append(Experiment(own, partial(peer_job, known[name], course, Budget(seconds))))
    return jobs


@dataclass(frozen=True)
class Row:
    """A peer on a kind of market with a budget: means over seeds, with half the width of their 95% intervals."""

    kind: str
    peer: str
    budget_seconds: float | None
    seeds: int
    of_rule: tuple[float, float]
    above: tuple[float, float]
    """Share of the rule's profit by which ours is above, paired by seed."""
    cpu_seconds: float
    steps: float
    rise_mb: float
    """Largest rise of resident memory while learning, MiB; NaN of the baselines, which are fitted together."""


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Sum up the records of a study: of shares of the rule where there is one, else of percent of the capital."""
    # A file that was joined of several may hold the baselines of a path more than once.
    flat = [
        *{(*_place(own), own["peer"], own.get("budget_seconds")): own for r in records for own in _flat(r)}.values()
    ]
    rule = {_place(own): _profit(own) for own in flat if own["peer"] == RULE}
    best = {_place(own): _profit(own) for own in flat if own["peer"] == OURS}
    groups: dict[tuple[str, str, float | None], list[Record]] = {}
    for own in flat:
        groups.setdefault((own["kind"], own["peer"], own.get("budget_seconds")), []).append(own)
    found = []
    for (kind, peer, seconds), some in groups.items():
        scale = [rule.get(_place(own), 1.0) for own in some]
        shares = [_profit(own) / unit for own, unit in zip(some, scale, strict=True)]
        known = [(own, unit) for own, unit in zip(some, scale, strict=True) if _place(own) in best]
        above = [(best[_place(own)] - _profit(own)) / unit for own, unit in known]
        found.append(
            Row(
                kind=kind,
                peer=peer,
                budget_seconds=seconds,
                seeds=len(some),
                of_rule=mean_interval(shares),
                above=mean_interval(above),
                cpu_seconds=float(np.mean([own["cpu_seconds"] for own in some])),
                steps=float(np.mean([own["steps"] for own in some])),
                rise_mb=float(np.fmax.reduce([own.get("rise_mb", math.nan) for own in some])),
            )
        )
    return found


def _flat(record: Record) -> list[Record]:
    """Return a record for each policy."""
    if record["peer"] != BASELINES:
        return [record]
    policies: Mapping[str, Record] = record["policies"]
    return [{**record, "peer": name, **found} for name, found in policies.items()]


def _place(record: Record) -> tuple[str, int]:
    return record["kind"], record["seed"]


def _profit(record: Record) -> float:
    return float(np.mean(record["by_path"]))


PLANTED_POLICIES = (RULE, ORACLE)

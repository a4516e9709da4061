"""Expectations at a lower precision: `python -m benchmarks.learning.precision [--kinds ...] [--json FILE]`.

Inputs and weights of the product that gives what critics expect are rounded to bfloat16, as tensor cores would take
them, in training and on unseen paths; sums stay float32. The champion's profit is compared with that of float32 on the
same seeds and paths. TF32 keeps three bits more. Takes settings of main.py as further flags.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from unittest import mock

from torch import Tensor

from benchmarks.learning.markets import KINDS, Budget, key_of, market_job, of_each_seed
from benchmarks.learning.study import Experiment, Record, mean_interval, plus_minus, run_study, seeds_of, study_config
from benchmarks.learning.unseen import UnseenPaths
from models.ddpg_agent import DDPGAgent, Judgement
from training.evaluation.baselines import CHAMPION
from training.forecasts import ridge
from utils.config.trader import Config
from utils.errors import ConfigError

EXACT = "float32"


ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    EXACT: lambda values: values,
    "bfloat16": lambda values: values.bfloat16().float(),
}


@contextlib.contextmanager
def rounded_expectations(precision: str) -> Iterator[None]:
    """Let all expectations be products of rounded inputs and weights."""
    rounded, expect, of_rows = ROUNDINGS[precision], ridge.expectations, DDPGAgent.judge

    def expectations(x: Tensor, weights: Tensor) -> Tensor:
        return expect(rounded(x), rounded(weights.float()))

    def of_agent(agent: DDPGAgent, x: Tensor) -> Judgement | tuple[Tensor]:
        members = agent.members and replace(agent.members, weights=rounded(agent.members.weights.float()).double())
        traders = replace(agent.traders, weights=rounded(agent.traders.weights.float()).double())
        return of_rows(replace(agent, traders=traders, members=members), rounded(x))

    with mock.patch.object(ridge, "expectations", expectations), mock.patch.object(DDPGAgent, "judge", of_agent):
        yield


def precision_job(config: Config, budget: Budget, unseen: UnseenPaths, precision: str) -> Record:
    """Train one seed at a precision and play its champion; see `market_job`."""
    with rounded_expectations(precision):
        return market_job(config, budget, unseen)


def main(words: Sequence[str] | None = None) -> int:
    """Run the study; print profits of the champion as shares of the rule's, and their differences from float32."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="each with a market path of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file of results, a line each; what it holds is not done again")
    parser.add_argument("--kinds", nargs="+", default=("momentum", "edges", "interaction"), choices=KINDS)
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--unseen-seed", type=int, default=5_000_000)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--windows", type=int, default=25)
    arguments, rest = parser.parse_known_args(words)
    unseen = UnseenPaths(arguments.unseen_seed, arguments.paths, arguments.windows)
    budget = Budget(None, arguments.generations)
    try:
        unseen.require_unseen(seeds_of(arguments))
        configs = {kind: study_config([*rest, "--synthetic.kind", kind]) for kind in arguments.kinds}
    except ConfigError as error:
        parser.error(str(error))
    print(f"{unseen}; champion's profit in shares of the rule's")
    for kind, config in configs.items():
        shares = {}
        for precision in ROUNDINGS:
            labels = {"study": "precision", "kind": kind, "precision": precision, **asdict(budget)}
            jobs = [
                Experiment(key_of(own, unseen, **labels), partial(precision_job, own, budget, unseen, precision))
                for own in of_each_seed(config, seeds_of(arguments))
            ]
            records = sorted(run_study(jobs, arguments.json), key=lambda record: record["seed"])
            shares[precision] = [record["policies"][CHAMPION]["of_rule"] for record in records]
            apart = [one - exact for one, exact in zip(shares[precision], shares[EXACT], strict=True)]
            share, difference = (plus_minus(*mean_interval(values), ".4f") for values in (shares[precision], apart))
            print(f"{kind:<12} {precision:<9} {share}, less float32 {difference}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

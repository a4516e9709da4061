"""Peers on equal terms: `python -m benchmarks.peers [--kinds KIND ...] [--peers PEER ...] [--json FILE]`.

Every peer learns from the training days of the same paths, under the same rules and costs, for the same CPU seconds,
and is played on the same windows of fresh paths. Further flags are settings of main.py over its quick profile. Results
are appended to --json one by one; started again, the study goes on from there. `--table` only shows what the file
holds. Needs `pip install -r requirements-peers.txt`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.learning.markets import add_unseen_flags, of_each_seed, unseen_of
from benchmarks.learning.study import (
    add_study_flags,
    ending,
    folder_of,
    read_results,
    run_study,
    seeds_of,
    study_config,
    study_executor,
)
from benchmarks.peers.study import experiments, markdown, peers, results

KINDS = ("momentum", "reversal", "regime", "spikes", "interaction", "agree", "ring", "pairs", "leak", "mixed")
SECONDS = (30.0, 600.0)
"""Budgets of those who learn as long as they may: that of a training of ours, and twenty times it."""


def main(words: Sequence[str] | None = None) -> None:
    """Do the study, or show what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_study_flags(parser, "--seeds", seeds=5)
    add_unseen_flags(parser)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--peers", nargs="+", default=[*peers()], choices=[*peers()], metavar="PEER")
    parser.add_argument("--seconds", nargs="+", type=float, default=SECONDS, help="CPU seconds, a run for each")
    parser.add_argument("--table", action="store_true", help="only print the table of --json")
    arguments, rest = parser.parse_known_args(words)
    with ending(parser):
        if not arguments.table:
            _study(arguments, rest)
        frame = results(read_results(arguments.json))
        print(markdown(frame, "of_rule"))
        if frame["seed"].nunique() > 1:
            print(f"\nby how much ours is above, in shares of the rule's profit\n{markdown(frame, 'above')}")


def _study(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    unseen = unseen_of(arguments)
    with study_executor(arguments, folder_of(arguments.json)) as executor:
        for kind in arguments.kinds:
            jobs = [
                job
                for config in of_each_seed(study_config([*words, "--synthetic.kind", kind]), seeds_of(arguments))
                for job in experiments(kind, config, unseen, arguments.peers, arguments.seconds)
            ]
            for record in run_study(jobs, arguments.json, executor):
                print(record["kind"], record["seed"], record["peer"], flush=True)


if __name__ == "__main__":
    main()

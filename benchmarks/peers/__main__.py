"""Peers on equal terms: `python -m benchmarks.peers [--kinds KIND ...] [--peers PEER ...] [--json FILE]`.

Every peer learns from the training days of the same paths, under the same rules and costs, for the same CPU seconds,
and is played on the same windows of fresh paths. Further flags are settings of main.py over its quick profile. Results
are appended to --json one by one; started again, the study goes on from there. `--table` only shows what the file
holds. Needs `pip install -r requirements-peers.txt`.
"""

import argparse
from collections.abc import Sequence

from benchmarks.learning.markets import add_unseen_flags, unseen_of
from benchmarks.learning.study import Study, add_study_flags, read_results, study_main
from benchmarks.peers.study import experiments, markdown, peers, results

KINDS = ("momentum", "reversal", "regime", "spikes", "interaction", "agree", "ring", "pairs", "leak", "mixed")
SECONDS = (30.0, 600.0)
"""Budgets of those who learn as long as they may: that of a training of ours, and twenty times it."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_study_flags(parser, "--seeds", seeds=5)
    add_unseen_flags(parser)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--peers", nargs="+", default=[*peers()], choices=[*peers()], metavar="PEER")
    parser.add_argument("--seconds", nargs="+", type=float, default=SECONDS, help="CPU seconds, a run for each")
    parser.add_argument("--table", action="store_true", help="only print the table of --json")
    parser.set_defaults(run=_run)


def _run(study: Study) -> None:
    arguments = study.arguments
    for kind in () if arguments.table else arguments.kinds:
        jobs = experiments(study, kind, unseen_of(arguments), arguments.peers, arguments.seconds)
        for record in study.each_record(jobs):
            print(record["kind"], record["seed"], record["peer"], flush=True)
    print(markdown(results(read_results(arguments.json))))


def main(words: Sequence[str] | None = None) -> None:
    """Do the study, or show what it found."""
    study_main(_add_flags, __doc__, words)


if __name__ == "__main__":
    main()

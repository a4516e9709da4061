"""Peers on equal terms: `python -m benchmarks.peers [--kinds KIND ...] [--peers PEER ...] [--json FILE]`.

Every peer learns from the training days of the same paths, under the same rules and costs, for the same CPU seconds,
and is played on the same windows of fresh paths. Further flags are settings of main.py over its quick profile. Results
are appended to --json one by one; started again, the study goes on from there. `--table` and `--figure` only show
what the file holds. Needs `pip install -r requirements-peers.txt`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.learning.markets import add_unseen_flags, unseen_of
from benchmarks.learning.study import (
    add_study_flags,
    ending,
    folder_of,
    plus_minus,
    read_results,
    run_study,
    seeds_of,
    study_config,
    study_executor,
)
from benchmarks.peers.course import REAL, Course
from benchmarks.peers.figure import draw
from benchmarks.peers.study import Row, experiments, peers, rows_of

KINDS = ("momentum", "reversal", "regime", "spikes", "interaction", "agree", "ring", "pairs", "leak", "mixed", REAL)
SECONDS = (30.0, 600.0)
"""Budgets of those who learn as long as they may: that of a training of ours, and twenty times it."""


def main(words: Sequence[str] | None = None) -> None:
    """Do the study, or show what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_study_flags(parser, "--seeds", seeds=5)
    add_unseen_flags(parser)
    parser.add_argument("--kinds", nargs="+", default=KINDS[:-1], choices=KINDS)
    parser.add_argument("--peers", nargs="+", default=[*peers()], choices=[*peers()], metavar="PEER")
    parser.add_argument("--seconds", nargs="+", type=float, default=SECONDS, help="CPU seconds, a run for each")
    parser.add_argument("--files", nargs=2, type=Path, metavar=("PRICES", "LIST"), help="for the kind real")
    parser.add_argument("--table", action="store_true", help="only print the table of --json")
    parser.add_argument("--figure", type=Path, help="only draw the figure of --json")
    arguments, rest = parser.parse_known_args(words)
    with ending(parser):
        if not (arguments.table or arguments.figure):
            _study(arguments, rest)
        rows = rows_of(read_results(arguments.json))
        if arguments.figure:
            draw(rows, arguments.figure)
        else:
            print("\n".join(markdown(rows, "of_rule")))
            if any(row.seeds > 1 for row in rows):
                print("\nShare of the rule's profit by which ours is above, paired by seed:\n")
                print("\n".join(markdown(rows, "above")))


def _study(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    with study_executor(arguments, folder_of(arguments.json)) as executor:
        for kind in arguments.kinds:
            files = tuple(arguments.files) if kind == REAL else None
            config = study_config([*words, *([] if kind == REAL else ["--synthetic.kind", kind])])
            jobs = [
                job
                for seed in seeds_of(arguments)
                for job in experiments(
                    Course(kind, replace(config, seed=seed, census_every=0), unseen_of(arguments), files),
                    arguments.peers,
                    arguments.seconds,
                )
            ]
            for record in run_study(jobs, arguments.json, executor):
                print(record["kind"], record["seed"], record["peer"], flush=True)


def markdown(rows: Sequence[Row], share: Literal["of_rule", "above"]) -> list[str]:
    """Format shares of the rule's profit as a Markdown table, a line for each policy and a column for each kind."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    heads = ("policy", "learns for, CPU s", *kinds, "steps", "MiB")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    found: dict[tuple[str, float | None], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row.peer, row.budget_seconds), {})[row.kind] = row
    for (peer, _), own in sorted(found.items(), key=lambda item: -_mean_share(item[1])):
        cells = [plus_minus(*getattr(own[kind], share)) if kind in own else "" for kind in kinds]
        seconds = sum(row.cpu_seconds for row in own.values()) / len(own)
        steps = sum(row.steps for row in own.values()) / len(own)
        rise_mb = np.fmax.reduce([row.rise_mb for row in own.values()])
        ends = (f"{steps:,.0f}" if steps else "", "" if np.isnan(rise_mb) else f"{rise_mb:.0f}")
        lines.append(f"| {peer} | {seconds:.0f} | {' | '.join((*cells, *ends))} |")
    return lines


def _mean_share(rows: Mapping[str, Row]) -> float:
    return sum(row.of_rule[0] for row in rows.values()) / len(rows)


if __name__ == "__main__":
    main()

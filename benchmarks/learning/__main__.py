"""Studies of learning: `python -m benchmarks.learning markets|null|power|evidence|risk [--json FILE]`.

`markets`: profits on unseen paths of planted markets, see `benchmarks.learning.markets`. `null`: how often a policy
is praised where nothing can be learned, see `benchmarks.learning.null`. `power`: how often one with skill is praised,
see `benchmarks.learning.power`. `evidence`: how often training days show significant evidence. `risk`: profit and
Sharpe ratio with aversion to risk and without, see `benchmarks.learning.risk`. All take settings of main.py as further
flags, do their jobs one by one, append each result to the JSON lines of --json, and go on from there when started
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.learning import evidence as learning_evidence
from benchmarks.learning import markets as learning_markets
from benchmarks.learning import null as learning_null
from benchmarks.learning import power as learning_power
from benchmarks.learning import risk as learning_risk
from benchmarks.learning.study import ending


def main(words: Sequence[str] | None = None) -> None:
    """Run the named study, print its table, write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    learning_markets.add_command(commands)
    learning_null.add_command(commands)
    learning_power.add_command(commands)
    learning_evidence.add_command(commands)
    learning_risk.add_command(commands)
    arguments, rest = parser.parse_known_args(words)
    with ending(parser):
        arguments.run(arguments, rest)


if __name__ == "__main__":
    main()

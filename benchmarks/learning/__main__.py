"""Studies of learning: `python -m benchmarks.learning markets|cold|null|power`.

`markets`: profits on unseen paths of planted markets, see `benchmarks.learning.markets`. `cold`: what each part
earns, see `benchmarks.learning.ablations`. `null`: how often a policy
is praised where nothing can be learned, see `benchmarks.learning.null`. `power`: how often one with skill is praised,
see `benchmarks.learning.power`. All take settings of main.py as further flags, do their jobs one by one, append each
result to the JSON lines of --json, and go on from there when started again.
"""

import argparse
from collections.abc import Sequence

from benchmarks.learning import ablations, markets, null, power
from benchmarks.learning.study import study_main

STUDIES = {"markets": markets, "cold": ablations, "null": null, "power": power}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True)
    for name, study in STUDIES.items():
        study.add_flags(commands.add_parser(name, help=(study.__doc__ or "").splitlines()[0], allow_abbrev=False))


def main(words: Sequence[str] | None = None) -> None:
    """Run the named study, print its table, write its figures."""
    study_main(_add_flags, __doc__, words)


if __name__ == "__main__":
    main()

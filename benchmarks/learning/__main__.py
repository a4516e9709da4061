"""Studies of learning: `python -m benchmarks.learning markets|parts|null|structures|laws|peers`.

`markets`: what is earned on unseen paths of planted markets. `parts`: what each part earns, see `ablations.py`. `null`:
what is believed where nothing can be learned. `structures`: hidden markets of the literature. `laws`: markets of laws
drawn at random. `peers`: deep agents of another library. See the files of these names. All take settings of main.py as
further flags, do their jobs one by one or --jobs at a time, append each result to the JSON lines of --json, and go on
from there when started again.
"""

import argparse
from collections.abc import Sequence

from benchmarks.learning import ablations, markets, null, peers, structures
from benchmarks.learning.laws import study as laws
from benchmarks.learning.study import Study, ending, study_config, study_executor

STUDIES = {
    "markets": markets,
    "parts": ablations,
    "null": null,
    "structures": structures,
    "laws": laws,
    "peers": peers,
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the named study, print its table, write its figures; other words are settings of main.py."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    for name, study in STUDIES.items():
        study.add_flags(commands.add_parser(name, help=(study.__doc__ or "").splitlines()[0], allow_abbrev=False))
    arguments, rest = parser.parse_known_args(words)
    with ending(parser):
        study_config(rest)  # refuses a flag of nobody before anything begins
        with study_executor(arguments.jobs, arguments.json) as executor:
            arguments.run(Study(arguments, rest, executor))


if __name__ == "__main__":
    main()

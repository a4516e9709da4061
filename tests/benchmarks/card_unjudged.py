"""`main.py` on a card that is not there, as `benchmarks.gpu_budget.card` runs it; runs end without their judgement."""

import sys

from benchmarks.gpu_budget.card import install_before_torch, run

if __name__ == "__main__":
    install_before_torch("tests.benchmarks.card_unjudged", sys.argv[1:])
    from tests.tiny_run import unjudged  # not before, for it takes a while

    with unjudged():
        sys.exit(run(sys.argv[1:]))

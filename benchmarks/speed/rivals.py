"""Time and memory of fitting the learned rivals: `python -m benchmarks.speed.rivals [--data FILE] [--investable FILE]`.

On one thread, as a judgement does it; further flags are settings of main.py. Without --data: the built-in market.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.learning.study import study_config
from benchmarks.speed.main_job import machine
from environment.portfolio import Portfolio
from training.evaluation.supervised import fit_supervised
from training.run.market import load_market
from utils.memory.guard import peak_rss_mb


def main(words: Sequence[str] | None = None) -> None:
    """Load the market, fit the rivals, print what it took."""
    torch.set_num_threads(1)
    config = study_config(sys.argv[1:] if words is None else words)
    market, _ = load_market(config)
    before, started = peak_rss_mb(), time.process_time()
    rivals = fit_supervised(market, Portfolio.on(market, config.env), refit_days=config.evaluation.rival_refit)
    seconds = time.process_time() - started
    days, stocks = market.splits.train.days, len(market.investable_columns)
    print(machine())
    print(f"{days:,} training days of {stocks} stocks among {len(market.tickers)} columns: {seconds:.1f} CPU s")
    print(f"peak resident memory {peak_rss_mb():.0f} MiB, {before:.0f} MiB before")
    for name, rival in rivals.items():
        print(f"{name}: {100 * rival.explained:.2f}% explained out of fold, {len(rival.inputs.terms)} context terms")


if __name__ == "__main__":
    main()

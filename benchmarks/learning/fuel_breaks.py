"""Results of the fuel-break network on test tiles, over seeds.

`python -m benchmarks.learning.fuel_breaks [--landscape FILE.npz] [--seeds 3] [--minutes 15] [--json FILE]
[--jobs N] [--runs-dir FOLDER] [SETTINGS]`. Minutes are the processor's, on
one thread. Other words are settings of `main.py fuel-breaks train`. Nothing is chosen on the test tiles.
"""

import argparse
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.learning.study import JOBS, Experiment, Record, ending, run_study, study_executor
from training.commands.table import COMMANDS
from training.fuel_breaks.commands import AGENT, judge, open_agent, paired_lead, run_train
from utils.config.cli import parse_command
from utils.config.fuel_breaks import FuelBreakEvaluateArguments, FuelBreakRunConfig, FuelBreakTrainArguments
from utils.config.settings import settings_hash
from utils.runs.console import setup_logging

logger = logging.getLogger("benchmarks.learning.fuel_breaks")


def learn(config: FuelBreakRunConfig, scenario_seeds: int) -> Record:
    """Train one seed by processor time and judge its best network, and every baseline, on all test tiles."""
    summary = run_train(FuelBreakTrainArguments(config), frozenset(), clock=time.process_time)
    arguments = FuelBreakEvaluateArguments(config.run, runs_dir=config.runs_dir, device="cpu", threads=config.threads)
    agent = open_agent(arguments)
    reductions = judge(agent, 0, scenario_seeds)
    return {
        **{name: summary[name] for name in ("episodes", "updates", "minutes", "peak_rss_mb", "validation")},
        "reduction_percent": {name: values.tolist() for name, values in reductions.items()},
    }


def compare(records: Sequence[Record]) -> Record:
    """Compute means over seeds and tiles, and the network's leads over tiles, each tile's the mean over seeds."""
    names = records[0]["reduction_percent"]
    means = {name: np.mean([record["reduction_percent"][name] for record in records], axis=0) for name in names}
    by_seed = [float(np.mean(record["reduction_percent"][AGENT])) for record in records]
    return {
        "network_by_seed": by_seed,
        "reduction_percent": {name: float(values.mean()) for name, values in means.items()},
        "lead": {name: paired_lead(means[AGENT], means[name]) for name in means if name != AGENT},
        "tiles": len(means[AGENT]),
    }


def main() -> None:
    """Train, compare, log and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scenario-seeds", type=int, default=3, help="sets of fires that a tile is judged by")
    parser.add_argument("--jobs", type=int, default=1, help=JOBS)
    parser.add_argument("--json", type=Path, help="file of results, a line each seed; what it holds is not done again")
    arguments, words = parser.parse_known_args()
    setup_logging()
    words = ["--minutes", "15", "--threads", "1", "--device", "cpu", *words]
    config: FuelBreakRunConfig = parse_command(["fuel-breaks", "train", *words], COMMANDS).arguments.settings
    jobs = []
    for seed in range(arguments.seeds):
        seeded = replace(config, seed=seed, run=f"seed-{seed}")
        key = {"seed": seed, "minutes": seeded.minutes, "settings": settings_hash(seeded)}
        jobs.append(Experiment(key, partial(learn, seeded, arguments.scenario_seeds)))
    with ending(parser), study_executor(arguments.jobs, arguments.json) as executor:
        logger.info("%s", json.dumps(compare(list(run_study(jobs, arguments.json, executor))), indent=2))


if __name__ == "__main__":
    main()

"""`python main.py fuel-breaks evaluate`: the network against every baseline, paired over tiles."""

import logging
import math
from typing import Any

import numpy as np
from scipy import stats

from training.fuel_breaks.config import FuelBreakEvaluateArguments
from training.fuel_breaks.policies import baselines, judging_environment, reductions, spaced
from training.fuel_breaks.run import AGENT, SavedAgent, lead_text, open_agent
from utils.arrays import Float64Array
from utils.progress import progress
from utils.runs.run_log import write_json
from utils.statistics import EDGES
from utils.tables import table

logger = logging.getLogger(__name__)
NEIGHBOURS = "tiles of one landscape are neighbours: p-values take them for independent"
_RESAMPLES = 10_000


def paired_lead(scores: Float64Array, other: Float64Array) -> dict[str, Any]:
    """Compare two policies by the differences of their (tiles,) reductions.

    `interval` is the 95% percentile bootstrap of the mean over tiles; the two-sided tests are paired t and signed-rank
    (Wilcoxon 1945), NaN where all differences are equal; `share_better` counts tiles.
    """
    difference = scores - other
    generator = np.random.Generator(np.random.PCG64(0))
    means = difference[generator.integers(0, len(difference), (_RESAMPLES, len(difference)))].mean(axis=1)
    varies = len(difference) > 1 and float(np.ptp(difference)) > 0
    return {
        "mean": float(difference.mean()),
        "interval": tuple(np.percentile(means, EDGES).tolist()),
        "p_value_t": float(stats.ttest_rel(scores, other).pvalue) if varies else math.nan,
        "p_value_wilcoxon": float(stats.wilcoxon(difference).pvalue) if varies else math.nan,
        "share_better": float((difference > 0).mean()),
    }


def run_evaluation(arguments: FuelBreakEvaluateArguments) -> dict[str, Any]:
    """Judge the network on test tiles, by the same fires for all policies; log a table and write it as JSON."""
    agent = open_agent(arguments.runs_dir, arguments.run, arguments.device, arguments.threads)
    saved = judge(agent, arguments.tiles, arguments.scenario_seeds)
    leads = {name: paired_lead(saved[AGENT], values) for name, values in saved.items() if name != AGENT}
    notes = [NEIGHBOURS, *agent.notes]
    means = {name: float(values.mean()) for name, values in saved.items()}
    result = {
        "run": agent.run.name,
        "split": "test",
        "best_generation": agent.best_generation,
        "episodes": agent.episodes,
        "scenario_seeds": arguments.scenario_seeds,
        "reduction_percent": {name: values.tolist() for name, values in saved.items()},
        "mean_reduction_percent": means,
        "lead_of_network": leads,
        "notes": notes,
    }
    best = max(leads, key=means.__getitem__)
    lead, tiles = lead_text(means[AGENT], {f"the best baseline, {best}": means[best]}), len(saved[AGENT])
    logger.info("network: %.2f %% on %d test tiles, %s", means[AGENT], tiles, lead)
    rows = list[dict[str, Any]]()
    for name, mean in means.items():
        rows.append({"policy": name, "reduction %": mean})
        if gained := leads.get(name):
            rows[-1] |= {"network's lead": gained["mean"], "from": gained["interval"][0], "to": gained["interval"][1]}
            rows[-1] |= {"p (t)": f"{gained['p_value_t']:.4f}", "p (Wilcoxon)": f"{gained['p_value_wilcoxon']:.4f}"}
    logger.info("%s, %d sets of fires\n%s", agent.run.path, arguments.scenario_seeds, table(rows, list(rows[-1])))
    for note in notes:
        logger.info("note: %s", note)
    path = agent.run.path / "evaluation-test.json"
    write_json(path, result)
    logger.info("results in %s", path)
    return result


def judge(agent: SavedAgent, max_tiles: int, scenario_seeds: int) -> dict[str, Float64Array]:
    """Return the (test tiles,) reductions of the burned area in percent by policy, the network first."""
    every = agent.test_tiles
    tiles = [every[tile] for tile in spaced(len(every), max_tiles or len(every))]
    env, policies = judging_environment(tiles, agent.config.env), {AGENT: agent.policy, **baselines(agent.config.seed)}
    saved: dict[str, list[Float64Array]] = {name: [] for name in policies}
    # Seed by seed: the environment keeps the fires of as many episodes as there are tiles.
    for seed in progress(range(scenario_seeds), "evaluating", "set of fires"):
        for name, policy in policies.items():
            saved[name].append(reductions(policy, env, (seed,), lanes=len(tiles)))
    return {name: np.mean(by_seed, axis=0) for name, by_seed in saved.items()}

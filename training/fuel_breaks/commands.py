"""The commands `python main.py fuel-breaks train`, `evaluate` and `show`: a run, its judgement and its pictures."""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from data.fuel_breaks import Landscape, Tile, cut_tiles, generated_landscape, load_landscape, split_tiles
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.pictures import draw_breaks, draw_burn_probability, draw_fire, draw_learning
from training.fuel_breaks.policies import (
    Policy,
    baselines,
    build_network,
    build_symmetry,
    greedy,
    judging_environment,
    place,
    reductions,
    spaced,
)
from training.run.session import open_session
from utils.arrays import Float64Array
from utils.config.cli import command_line
from utils.config.fuel_breaks import (
    FuelBreakEvaluateArguments,
    FuelBreakRunConfig,
    FuelBreakShowArguments,
    FuelBreakTrainArguments,
)
from utils.config.settings import read_json, settings_hash
from utils.errors import CheckpointError, ConfigError, DataError
from utils.memory_guard import peak_rss_mb, release_free_memory
from utils.memory_profiler import BASELINE, GENERATION, get_profiler
from utils.progress import Progress, progress
from utils.runs.checkpoint import Checkpoint
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import RunLog, write_json
from utils.runs.state_tree import misfit
from utils.statistics import EDGES
from utils.tables import Rows, table

logger = logging.getLogger(__name__)
AGENT = "network"
GENERATED = "generated terrain: the result says nothing about a real place"
UNTRAINED = (
    "no generation has beaten the untrained network, which at best repeats the baseline adaptive downstream value; "
    "train longer"
)


def load_tiles(config: FuelBreakRunConfig) -> tuple[Landscape, dict[str, list[Tile]]]:
    """Load a run's landscape, and its tiles by split. Raises DataError if it cannot be read or is too small."""
    path = config.landscape
    landscape = generated_landscape(config.terrain_seed) if path is None else load_landscape(path)
    splits = split_tiles(cut_tiles(landscape, config.tiles), config.tiles)
    counts = {name: len(tiles) for name, tiles in splits.items()}
    logger.info("landscape: %s; tiles: %s", path or GENERATED, counts)
    return landscape, splits


def record_or_check_landscape(run_path: Path, landscape: Landscape) -> None:
    """Record the landscape of a new run. Raises DataError for a run that began on another one."""
    path, digest = run_path / "landscape.json", hashlib.sha256(str((landscape.shape, landscape.cell_size_m)).encode())
    for name, array in sorted(landscape.arrays().items()):
        digest.update(name.encode() + array.tobytes())
    if not path.exists():
        write_json(path, {"sha256": digest.hexdigest()})
    elif read_json(path)["sha256"] != digest.hexdigest():
        raise DataError(f"expected the landscape that {run_path} learned from, got another; give --landscape")


@dataclass(frozen=True)
class SavedAgent:
    """The best network of a run."""

    run: RunLog
    config: FuelBreakRunConfig
    test_tiles: list[Tile]
    policy: Policy  # greedy by the network
    best_generation: int  # 0: the untrained network
    episodes: int
    notes: list[str]  # caveats


def open_agent(arguments: FuelBreakEvaluateArguments | FuelBreakShowArguments) -> SavedAgent:
    """Open the best network of the named run, or of the newest one. Raises ConfigError, DataError."""
    device = choose_device(arguments.device)
    choose_threads(arguments.threads)
    run = RunLog.open(arguments.runs_dir, arguments.run)
    config = run.settings(FuelBreakRunConfig)
    landscape, splits = load_tiles(config)
    record_or_check_landscape(run.path, landscape)
    network, symmetry = build_network(config.network).to(device), build_symmetry(config.tiles.tile_cells)

    def take_over(checkpoint: Checkpoint) -> tuple[dict[str, float], int]:
        best, progress = checkpoint.state["networks"]["best"], checkpoint.state["progress"]
        if problem := misfit(best, network.state_dict()):
            raise CheckpointError(problem)
        network.load_state_dict(best)
        return progress["scores"], int(progress["episodes"])

    scores, episodes = run.use_newest(settings_hash(config), take_over)
    policy, generation = greedy(network.eval(), symmetry), int(scores["best_generation"])
    logger.info("run %s: network of generation %d, %s episodes", run.path, generation, f"{episodes:,}")
    return SavedAgent(run, config, splits["test"], policy, generation, episodes, caveats(config, scores))


def lead_text(reduction: float, others: Mapping[str, float]) -> str:
    """Say by how many points a reduction in percent is above or below others."""
    gaps = {name: reduction - other for name, other in others.items()}
    return ", ".join(f"{abs(gap):.2f} points {'below' if gap < 0 else 'above'} {name}" for name, gap in gaps.items())


def caveats(config: FuelBreakRunConfig, scores: Mapping[str, float]) -> list[str]:
    """Return what a reader must know about the results of the best network."""
    notes = [GENERATED] if config.landscape is None else []
    if not scores["best_generation"]:
        notes.append(UNTRAINED)
    return notes


RIVALS = {"untrained": "the untrained network", "adaptive_downstream_value": "adaptive downstream value"}


def run_train(
    arguments: FuelBreakTrainArguments, explicit: frozenset[str], clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Train, or resume, until the minutes by `clock` or episodes are spent. Raises as `open_session`, DataError."""
    config, started = arguments.settings, clock()
    # Before a new run's folder is created, so that an unusable landscape leaves nothing behind.
    loaded = load_tiles(config) if config.resume is None else None
    with open_session(config, explicit) as session:
        config = session.settings
        logger.info("run %s", session.run.path)
        landscape, splits = loaded or load_tiles(config)
        record_or_check_landscape(session.run.path, landscape)
        trainer = DQNTrainer(config, splits["train"], splits["validation"], session.device, session.safe_point, clock)
        is_resumed = session.restore(trainer)
        spent = trainer.seconds["total"]
        if not is_resumed:
            trainer.begin()
            rivals = ", ".join(f"{label} {trainer.scores[name]:.2f} %" for name, label in RIVALS.items())
            logger.info("burned area saved on %d validation tiles: %s", len(trainer.validation.tiles), rivals)
        get_profiler().log_memory(BASELINE)
        trainer.seconds["total"] = spent + clock() - started
        with session.saving(trainer) as save:
            for record in _generations(trainer):
                release_free_memory()
                get_profiler().log_memory(f"Gen {trainer.generation}: After {GENERATION}")
                save(record)
                logger.info("%s", status_lines(record))
                note = "; ".join(caveats(config, trainer.scores))
                draw_learning(session.run.records(), session.run.path / "learning.png", note)
                trainer.cleanup_memory()  # a figure and its pixels refer to each other
        return _finish(trainer, session.run, config)


def _generations(trainer: DQNTrainer) -> Iterator[dict[str, Any]]:
    """Train under a bar of the minutes, or of the episodes where those have no limit."""
    episodes, limit = trainer.config.episodes, int(trainer.config.minutes * 60)

    def done() -> int:
        return int(trainer.seconds["total"]) if trainer.config.minutes else trainer.episodes

    unit, total = ("second", limit) if trainer.config.minutes else ("episode", episodes)
    with Progress("Training", unit, total, done=done()) as shown:
        # A generation that was begun is played to its end, and the first one is trained in any case.
        while not trainer.generation or not (0 < episodes <= trainer.episodes or trainer.is_out_of_time):
            yield trainer.run_generation(lambda: shown.update(done() - shown.done))


def _finish(trainer: DQNTrainer, run: RunLog, config: FuelBreakRunConfig) -> dict[str, Any]:
    profiler, scores, notes = get_profiler(), trainer.scores, caveats(config, trainer.scores)
    summary = {
        "generations": trainer.generation,
        "episodes": trainer.episodes,
        "updates": trainer.updates,
        "minutes": trainer.seconds["total"] / 60,
        "validation": {**scores, "tiles": len(trainer.validation.tiles)},
        "notes": notes,
        "replay_bytes_per_transition": trainer.replay.bytes_per_row,
        "peak_rss_mb": peak_rss_mb(),
        "rss_mb_per_generation": [snapshot.measures["rss_mb"] for snapshot in profiler.visits(GENERATION)],
        "rss_mb_trend_per_generation": profiler.trend(GENERATION).get("rss_mb"),
    }
    run.write_summary(summary)
    logger.info("trained network: %.2f %% on validation tiles, %s", scores["agent"], _leads(scores))
    judge = f"judge it on test tiles with {command_line('fuel-breaks', 'evaluate', '--runs-dir', str(run.path.parent))}"
    best = scores["best"], scores["best_generation"]
    logger.info("best network: %.2f %%, of generation %d; %s --run %s", *best, judge, run.name)
    for note in notes:
        logger.info("note: %s", note)
    return summary


def _leads(validation: Mapping[str, float]) -> str:
    return lead_text(validation["agent"], {label: validation[name] for name, label in RIVALS.items()})


def status_lines(record: Mapping[str, Any]) -> str:
    """Return the state of a run after a generation, from its record in metrics.jsonl."""
    validation, buffers, memory = record["validation"], record["buffers"], record["memory"]
    lengths = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in buffers["histories"].items())
    freed = sum(memory["freed_mb"].values())
    counted = ", ".join(f"{count} by {work.replace('_', ' ')}" for work, count in memory["checks"].items())
    gpu = f"{memory['gpu_allocated_mb']:,.0f} MiB allocated, {memory['gpu_reserved_mb']:,.0f} MiB reserved"
    best = f"{validation['best']:.2f} % of generation {validation['best_generation']}"
    played = f"{record['episodes']:,} episodes, {record['updates']:,} updates, {record['seconds']['total']:,.0f} s"
    return f"""Generation {record["generation"]}: network {validation["agent"]:.2f} %, {_leads(validation)}
  best {best}; {played}
  loss {record["loss"]:.4g}, return {record["return_percent"]:.2f} %, epsilon {record["epsilon"]:.3f}
  replay {buffers["replay"]:,} / {buffers["replay_capacity"]:,} ({buffers["replay_bytes"]:,} bytes), {lengths}
  {memory["rss_mb"]:,.0f} MiB, GPU {gpu}; clean-ups ({counted}) gave back {freed:,.1f} MiB
"""


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
    agent = open_agent(arguments)
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
    rows = Rows()
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
    for seed in progress(range(scenario_seeds), "Evaluating plans", "set of fires"):
        for name, policy in policies.items():
            saved[name].append(reductions(policy, env, seed, lanes=len(tiles)))
    return {name: np.mean(by_seed, axis=0) for name, by_seed in saved.items()}


_IGNITIONS_PER_WIND = 200  # more fires than in an evaluation, so that the maps are smooth


def run_show(arguments: FuelBreakShowArguments) -> Path:
    """Draw a tile into `runs/fuel-breaks/NAME/tile-test-K/`; return that folder."""
    agent = open_agent(arguments)
    tiles, env, seed = agent.test_tiles, agent.config.env, arguments.scenario_seed
    if arguments.tile >= len(tiles):
        raise ConfigError(f"expected a test tile from 0 to {len(tiles) - 1}, got {arguments.tile}")
    tile = tiles[arguments.tile]
    config = replace(env, scenarios=replace(env.scenarios, judging_ignitions_per_wind=_IGNITIONS_PER_WIND))
    vector, placements = judging_environment([tile], config), {}
    for policy_name, policy in {AGENT: agent.policy, **baselines(agent.config.seed)}.items():
        cleared = place(policy, vector, [0], seed)[0]
        placements[policy_name] = cleared, float(vector.reductions[0])
        logger.info("%-28s %6.2f %%", policy_name, placements[policy_name][1])
    folder, judging = agent.run.path / f"tile-test-{arguments.tile}", vector.rewarding(0, seed)
    folder.mkdir(exist_ok=True)
    name = f"Test tile {arguments.tile}"
    fires = f"{len(judging.ignition_cells)} fires of {judging.duration_minutes:.0f} minutes that no policy saw"
    note = "; ".join([fires, *agent.notes])
    hectares = env.budget_cells * tile.landscape.cell_size_m**2 / 10_000
    title = f"{name}: where each policy clears {env.budget_cells} cells ({hectares:.1f} ha)"
    draw_breaks(tile.landscape, placements, folder / "breaks.png", title, note)
    cleared = placements[AGENT][0]
    arrivals, title = (judging.unbroken_arrival, judging.burn(cleared)), f"{name}: burn probability before and after"
    draw_burn_probability(tile.landscape, arrivals, cleared, folder / "burn_probability.png", title, note)
    title = f"{name}: one fire, without and with breaks"
    draw_fire(tile.landscape, judging, arrivals, cleared, folder / "fire.gif", title, note)
    logger.info("pictures in %s", folder)
    return folder

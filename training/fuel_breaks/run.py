"""A run of the fuel-break experiment: its tiles and its best network."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data.fuel_breaks.landscape import Landscape, Tile, cut_tiles, generated_landscape, load_landscape, split_tiles
from training.fuel_breaks.config import FuelBreakRunConfig
from training.fuel_breaks.policies import Policy, build_network, build_symmetry, greedy
from utils.config.settings import settings_hash
from utils.errors import CheckpointError, DataError
from utils.runs.checkpoint import Checkpoint
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import RunLog, write_json
from utils.runs.state_tree import misfit

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
    elif json.loads(path.read_text(encoding="utf-8"))["sha256"] != digest.hexdigest():
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


def open_agent(runs_dir: Path, name: str | None, device_name: str, threads: int) -> SavedAgent:
    """Open the best network of the named run, or of the newest one. Raises ConfigError, DataError."""
    device = choose_device(device_name)
    choose_threads(threads)
    run = RunLog.open(runs_dir, name)
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

    scores, episodes = run.newest_generation(settings_hash(config), take_over)
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

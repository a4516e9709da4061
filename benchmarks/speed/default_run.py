"""Where the time of the program goes: `python -m benchmarks.speed.default_run [flags of main.py]`.

`main.py` runs in this process, unchanged and with nothing loaded before it; a thread notes every few milliseconds in
which function it is. CPU seconds are those of all threads; where other programs run, only these can be compared.
"""

import os
import runpy
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
TRAINER = "training.erl_trainer:ERLTrainer"
PHASES = {
    "import": ("importlib._bootstrap:_find_and_load",),
    "market": ("training.run.market:load_market", "training.run.market:remember_market"),
    "evaluate": (f"{TRAINER}.evaluate_population",),
    "evolve": (f"{TRAINER}.evolve_population",),
    "train": (f"{TRAINER}.train_population",),
    "validate": (f"{TRAINER}.validate_best_agent",),
    "judge": ("training.commands.evaluate:judge_training",),
    "report, pictures": (
        "training.commands.train:_finish",
        "training.commands.train:_draw_progress",
        "training.run.status:status_block",
    ),
    "memory, checkpoints": (
        "utils.memory_profiler:MemoryProfiler.log_memory",
        "utils.memory.clean_up:clean_up",
        "training.run.session:Session.train",
    ),
    "inputs": tuple(f"models.inputs:TradeInputs.{name}" for name in ("fit", "blocks", "banks", "forecasts")),
    "forecasts": ("training.forecasts.ridge:TrainingDays.of", f"{TRAINER}.stand_on"),
}
"""Functions of a phase. Where several are under way, the first phase of the table counts."""
REST = "rest"
INTERVAL_SECONDS = 0.005


def phase_of(functions: Iterable[str]) -> str:
    """Return the phase of the functions under way, each as `module:name`."""
    under_way = set(functions)
    return next((phase for phase, names in PHASES.items() if not under_way.isdisjoint(names)), REST)


@contextmanager
def measured_phases() -> Iterator[dict[str, tuple[float, float]]]:
    """Measure this thread until the end of the block: wall-clock and CPU seconds by phase."""
    seconds = dict.fromkeys((*PHASES, REST), (0.0, 0.0))
    over, own = threading.Event(), threading.get_ident()

    def watch() -> None:
        then = time.perf_counter(), time.process_time()
        while not over.wait(INTERVAL_SECONDS):
            phase = phase_of(_functions(sys._current_frames()[own]))
            now = time.perf_counter(), time.process_time()
            wall, cpu = seconds[phase]
            seconds[phase] = wall + now[0] - then[0], cpu + now[1] - then[1]
            then = now

    watcher = threading.Thread(target=watch, name="phases", daemon=True)
    watcher.start()
    try:
        yield seconds
    finally:
        over.set()
        watcher.join()


def _functions(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}"
        frame = frame.f_back


def main() -> None:
    """Run the program and print where its time went."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path[0] = str(ROOT)
        sys.argv = [str(ROOT / "main.py"), "--runs-dir", folder, *sys.argv[1:]]
        with measured_phases() as seconds:
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
            except SystemExit as end:
                if end.code:
                    raise
    total = tuple(map(sum, zip(*seconds.values(), strict=True)))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n\n| phase | wall s | CPU s |")
    print("| --- | ---: | ---: |")
    for name, (wall, cpu) in {**seconds, "total": total}.items():
        print(f"| {name} | {wall:.1f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()

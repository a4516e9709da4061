"""Settings tried by Optuna: `python -m examples.optuna_settings --data prices.parquet`, after `pip install optuna`.

A trial is a run for each seed; its value is the median profit of their champions on validation days. Flags are those of
main.py and hold for all runs. Started again, it goes on with the next trial.
"""

import json
import statistics
import sys
from pathlib import Path

import optuna

from main import main as trader

RUNS, TRIALS, SEEDS = Path("runs/settings"), 20, 3


def profit(trial: optuna.Trial) -> float:
    """Return the value of a trial, percent."""
    strength = trial.suggest_float("mutation_strength", 0.02, 0.5, log=True)
    windows = trial.suggest_int("fitness_windows", 4, 24)
    settings = ["--evolution.mutation-strength", str(strength), "--evaluation.fitness-windows", str(windows)]
    profits = []
    for seed in range(SEEDS):
        run = f"trial-{trial.number}-seed-{seed}"
        if trader([*sys.argv[1:], *settings, "--seed", str(seed), "--run", run, "--runs-dir", str(RUNS)]):
            raise SystemExit(f"{run} failed")
        results = json.loads((RUNS / run / "results.json").read_text(encoding="utf-8"))
        profits.append(float(results["policies"]["champion"]["return"]["value"]))
    return statistics.median(profits)


def main() -> None:
    """Try settings, name the best ones, and show all runs side by side, with how overfit the best one may be."""
    RUNS.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{RUNS}/study.db"
    study = optuna.create_study(direction="maximize", study_name="settings", storage=storage, load_if_exists=True)
    study.optimize(profit, TRIALS)
    print("best:", study.best_params, f"{study.best_value:+.2f}%")
    trader(["report", *sorted(path.parent.name for path in RUNS.glob("*/results.json")), "--runs-dir", str(RUNS)])


if __name__ == "__main__":
    main()

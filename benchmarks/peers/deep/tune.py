"""Settings of the deep agents by search: `python -m benchmarks.peers.deep.tune [--peers PEER ...] [--trials 20]`.

Optuna (Akiba et al. 2019) tries settings on a training path of another seed than those of the study; a trial's value is
what the agent earns on the validation windows. The best ones are written to `tuned.json`, which the study reads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch

from benchmarks.learning.study import ending, study_config
from benchmarks.learning.unseen import training_market
from benchmarks.peers.deep.agents import ON_POLICY, TUNED, DeepAgent, deep_agents
from benchmarks.peers.peer import Budget
from data.market import Market
from utils.config.trader import Config

SEED = 1000
"""Of the training path; the study's are small."""


def settings(trial: optuna.Trial, algorithm: str) -> dict[str, Any]:
    """Draw the settings that matter most by the algorithms' documentation."""
    width = trial.suggest_categorical("width", [32, 64, 256])
    found: dict[str, Any] = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True),
        "gamma": 1.0 - trial.suggest_float("discount", 1e-4, 0.3, log=True),
        "policy_kwargs": {"net_arch": [width, width]},
    }
    if algorithm == "PPO":
        found["batch_size"] = trial.suggest_categorical("batch_size", [64, 256, 1024])
    if algorithm in ON_POLICY:
        lengths = [5, 32, 145] if algorithm == "A2C" else [145, 1024]
        found["n_steps"] = trial.suggest_categorical("n_steps", lengths)
        found["ent_coef"] = trial.suggest_float("ent_coef", 1e-6, 1e-2, log=True)
        found["gae_lambda"] = trial.suggest_float("gae_lambda", 0.5, 1.0)
        return found
    found["batch_size"] = trial.suggest_categorical("batch_size", [64, 256, 1024])
    found["learning_starts"] = trial.suggest_categorical("learning_starts", [100, 1000])
    found["train_freq"] = trial.suggest_categorical("train_freq", [1, 4, 16])
    return found


def tune(name: str, agent: DeepAgent, config: Config, market: Market, budget: Budget, trials: int) -> dict[str, Any]:
    """Search; return the best settings and what they earned on validation windows."""

    def value(trial: optuna.Trial) -> float:
        drawn = settings(trial, agent.algorithm)
        trial.set_user_attr("settings", drawn)
        return replace(agent, settings=drawn).trained(config, market, budget).most

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=config.seed))
    study.optimize(value, n_trials=trials, catch=(ValueError,))
    print(f"{name}: {study.best_value:.2f} % of {len(study.trials)} trials", flush=True)
    return {"settings": study.best_trial.user_attrs["settings"], "validation_percent": study.best_value}


def main(words: Sequence[str] | None = None) -> None:
    """Tune the agents one after the other; write each as soon as it is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", default=[*deep_agents()], choices=[*deep_agents()], metavar="PEER")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="CPU seconds of a trial")
    parser.add_argument("--kind", default="mixed", help="of the market")
    parser.add_argument("--to", type=Path, default=TUNED)
    arguments, rest = parser.parse_known_args(words)
    torch.set_num_threads(1)
    with ending(parser):
        config = replace(study_config([*rest, "--synthetic.kind", arguments.kind]), seed=SEED)
        market, _ = training_market(config)
        search = partial(tune, config=config, market=market, budget=Budget(arguments.seconds), trials=arguments.trials)
        for name in arguments.peers:
            known = json.loads(arguments.to.read_text()) if arguments.to.is_file() else {}
            known[name] = search(name, deep_agents()[name]) | {"kind": arguments.kind, "trials": arguments.trials}
            arguments.to.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()

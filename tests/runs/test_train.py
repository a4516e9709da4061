"""What `python main.py` builds and repeats, and what benchmarks build and repeat without a run, are the same."""

import inspect
import json
from pathlib import Path

import torch

from benchmarks.trainers import build_trainer, generations
from tests.tiny_run import records
from training import train
from training.run.market import load_market
from utils.config.trader import Config
from utils.runs.devices import seed_everything
from utils.runs.run_log import RunLog


def test_a_trainer_without_a_run_is_that_of_a_run(trained: Path) -> None:
    config = RunLog.open(trained / "runs", "whole").settings(Config)
    seed_everything(config.seed)
    trainer = build_trainer(config, load_market(config), torch.device("cpu"))
    alone = [json.loads(json.dumps(record)) for record in generations(trainer, 3)]
    kept = records(trained / "tiny.toml", "whole")
    assert [{name: one[name] for name in kept[0]} for one in alone] == kept


def test_the_run_is_one_screen_in_the_order_of_its_parts() -> None:
    source = inspect.getsource(train.train)
    body = source[source.index("with open_session") :]
    assert body.count("\n") <= 50
    parts = ("data_loader(", "eval_env =", "val_env =", "Population(", "ReplayBuffer(", "ERLTrainer(", "for _ in ")
    phases = ("evaluate_population()", "evolve_population()", "train_population()", "validate_best_agent()", "save(")
    places = [body.index(part) for part in (*parts, *phases)]
    assert places == sorted(places)

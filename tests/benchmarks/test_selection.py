"""Diagnostics of selection: who descends from whom, what fitness and validation foretell, what the critics expect."""

from __future__ import annotations

import torch

from benchmarks.learning.markets import training_market
from tests.benchmarks.study_cases import tiny_config
from training.erl_trainer import ERLTrainer
from training.run.trainer import build_trainer
from utils.config.trader import Config


def trainer_of(config: Config) -> ERLTrainer:
    return build_trainer(config, training_market(config)[0], torch.device("cpu"))


def test_all_descend_from_the_only_winner() -> None:
    words = ("--evolution.elite-fraction", "0.3", "--evolution.tournament-size", "50")
    trainer = trainer_of(tiny_config(*words, "--evolution.crossover", "average"))
    trainer.evaluate()
    assert trainer.founders == [0, 1, 2]
    trainer.evolve(torch.tensor([0.0, 1.0, 2.0]))
    assert trainer.founders == [2, 2, 2]


def test_founders_go_on_as_if_never_interrupted() -> None:
    config = tiny_config("--evolution.tournament-size", "1")
    whole, resumed = trainer_of(config), trainer_of(config)
    counts = [whole.run_generation()["founders"] for _ in range(2)]
    assert counts[-1] == len(set(whole.founders)) < 3
    resumed.load_state_dict(whole.state_dict())
    for trainer in (whole, resumed):
        trainer.run_generation()
    assert resumed.founders == whole.founders

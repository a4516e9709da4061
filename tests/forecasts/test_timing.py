"""The level of a day's forecasts is used as far as its evidence goes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.evidence import Trust
from models.evolution import random_genes
from models.inputs import INPUTS
from models.population import target_percents
from models.trader import day_mean
from tests.tiny import learnable_market, seeded, tiny_trainer

AGENTS = 4


def test_the_level_of_a_day_by_hand() -> None:
    """Out of fold and as deployed: mean + trust x (level - mean); what differs between stocks stays as it is."""
    trainer = tiny_trainer(learnable_market(1))
    days, genes = trainer.days, random_genes(AGENTS, seeded(1))
    rows, ridge = days.samples.x, days.fit(genes)
    has_bar = days.tradable[rows.days].numpy()
    has_bars = has_bar.any(axis=1)

    def levels(trust: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        share = torch.full((AGENTS, 1 + len(days.samples.folds)), trust, dtype=torch.float64)
        found = days.forecasts(days.means.with_trust(ridge, share), target_percents(genes))[0]
        expected = np.where(has_bar, found.expected[:, rows.days].numpy(), np.nan).astype(np.float64)
        level = np.nanmean(expected[:, has_bars], axis=2)
        return level, expected[:, has_bars] - level[..., None]

    (none, relative), (some, _), (whole, same) = (levels(trust) for trust in (0.0, 0.3, 1.0))
    np.testing.assert_allclose(some, 0.3 * whole + 0.7 * none, atol=1e-4)
    np.testing.assert_allclose(relative, same, atol=1e-4)
    count = has_bar.sum(axis=1, keepdims=True).clip(min=1)
    means = np.where(has_bar[..., None], rows.dense(rows.days), 0.0).sum(axis=1) / count
    for fold, (fitted, held) in enumerate(days.samples.folds):
        here = np.zeros(len(has_bar), dtype=np.bool_)
        here[held.start - rows.days.start : held.stop - rows.days.start] = True
        outside = means[fitted[rows.days] & has_bars].mean(axis=0) @ ridge.by_fold[:, fold].numpy().T
        same_on_all_days = np.broadcast_to(outside[:, None], none[:, here[has_bars]].shape)
        np.testing.assert_allclose(none[:, here[has_bars]], same_on_all_days, atol=1e-3)
    assert np.ptp(whole, axis=1).min() > 0.1


def test_a_champion_uses_its_level_as_its_members_do() -> None:
    trainer = tiny_trainer(learnable_market(1))
    list(trainer.run(2))
    champion, market = trainer.champion, trainer.market
    timing = trainer.population.ridge.timing[trainer.population.elites]
    assert champion.trust.timing == pytest.approx(float(timing.mean()))
    tradable = torch.from_numpy(np.isfinite(market.close))
    plain = replace(champion, trust=Trust.full(INPUTS))
    x = torch.from_numpy(champion.inputs.of(market)).double()
    shift = day_mean((x @ champion.trust.shift)[None], tradable)
    for agent, other in ((champion, plain), (champion.closed_form(), plain.closed_form())):
        found, expected = (one.forecasts(market) for one in (agent, other))
        assert torch.equal(found.score, expected.score)
        known = tradable[None]
        torch.testing.assert_close(
            found.expected[known], (expected.expected + shift).float()[known], rtol=1e-4, atol=1e-4
        )

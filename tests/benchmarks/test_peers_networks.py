"""Networks as peers: they learn what is planted, stop in time, and soft accounts become real ones."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from benchmarks.learning.unseen import UnseenPaths, training_market
from benchmarks.peers.differentiable import SoftAccount, StockPolicy, differentiable_rollout
from benchmarks.peers.networks import fit_networks, networks, scores_of
from benchmarks.peers.peer import Budget
from data.splits import Span
from environment.portfolio import Portfolio
from tests.benchmarks.study_cases import tiny_config
from tests.tiny import rows_of, seeded, tiny_rules, trending_panel, world_of
from training.forecasts.samples import Samples
from training.rollout import play
from utils.spaces import TARGET_PERCENTS

DAYS, STOCKS, INPUTS = 300, 5, 3
PEERS = {**networks(), "differentiable rollout": differentiable_rollout}


def samples_of(results: np.ndarray, longest: int = 4) -> Samples:
    """Results at all targets of days 0 to 299, all known."""
    days, stocks = results.shape[-2:]
    x = rows_of(np.zeros((days, stocks, INPUTS), np.float32))
    return Samples(x, results, Span(0, days - 1), longest)


def spent_after(calls: int) -> Callable[[], bool]:
    """A budget that is spent when it was asked for so often."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def test_networks_learn_a_law_that_is_no_line_and_nothing_from_noise() -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    x = rng.standard_normal((3 * DAYS, STOCKS, INPUTS)).astype(np.float32)
    law = np.where(x[..., 0] * x[..., 1] > 0, 1.0, -1.0)
    scale = np.arange(1, len(TARGET_PERCENTS) + 1)[:, None, None]
    for signal, least, most in ((1.0, 0.1, 0.51), (0.0, -0.003, 0.02)):
        noise = rng.standard_normal((len(TARGET_PERCENTS), *law.shape))
        samples = samples_of((scale * (signal * law + noise)).astype(np.float32))
        found, deviation = fit_networks(samples, torch.from_numpy(x), spent_after(5 * 20), seeded())
        known = np.full((*law.shape, len(TARGET_PERCENTS)), np.nan)
        for network, (_, held) in zip(found, samples.folds, strict=True):
            known[held] = scores_of([network], torch.from_numpy(x[held]), deviation)
        for target in (0, 4):
            is_scored = samples.is_known & samples.train_days[:, None]
            result = samples.results[target][is_scored]
            assert least < 1 - ((result - known[..., target][is_scored]) ** 2).mean() / result.var() < most


@pytest.mark.parametrize(("orders", "stake"), [(1, 4.0), (1, 8.0), (2, 1.0)])
def test_a_cold_soft_account_is_the_account(orders: int, stake: float) -> None:
    """With random policies: where cash runs out, and where two orders a day are placed."""
    rules = tiny_rules(max_new_positions_per_day=orders, stake_percent=stake)
    world = world_of(trending_panel(np.zeros(6), 120, noise=0.05), rules=rules)
    env, train_span = world.env, world.market.splits.train
    x = torch.randn(world.days, world.stocks, INPUTS, generator=seeded(1))
    samples = Samples.of(rows_of(x.numpy()), env, train_span, train_span.last)
    starts, gaps = world.starts(12).clamp(max=world.days - 12), []
    for target in (0, 4):
        account = SoftAccount.of(env, samples, target)
        for seed in range(3):
            policy = random_policy(seed)
            hard = play(env, policy.hard(x, TARGET_PERCENTS[target]), starts)[0].profit_percent
            with torch.no_grad():
                soft = {t: account.profit(policy, x, starts, t).double() for t in (1e-4, 1.0)}
            assert hard.abs().max() > 0.2
            torch.testing.assert_close(soft[1e-4], hard, rtol=1e-3, atol=1e-3)
            gaps.append(float((soft[1.0] - hard).abs().mean()))
    assert max(gaps) > 0.1


def random_policy(seed: int) -> StockPolicy:
    """A policy with random last layers, so that it orders some stocks on some days."""
    torch.manual_seed(seed)
    policy = StockPolicy(INPUTS).eval()
    for part in (policy.stocks, policy.account):
        torch.nn.init.normal_(part[-1].weight, std=2.0)  # type: ignore[arg-type]
    return policy


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_plays_unseen_paths(name: str) -> None:
    config = tiny_config()
    market, _ = training_market(config)
    learned = PEERS[name](config, market, Budget(0.5))
    path = next(iter(UnseenPaths(paths=1, windows=3).each(config, market.stats)))
    profits = learned.play(path)
    assert profits.shape == (3,) and np.isfinite(profits).all()
    assert np.array_equal(profits, learned.play(path))
    assert Portfolio.on(market, config.env).orders_per_day == 1 and learned.environment_steps >= 0

"""What the replay stores and rebuilds, and how rewards become targets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from tests.fuel_breaks.fire_cases import observe_anew, small_tiles
from tests.fuel_breaks.run_cases import run_config, trainer_of, with_learning
from training.fuel_breaks.replay import centre_by_group, n_step_returns


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([1.0, 0.9, 0.5]))
def test_sums_of_rewards_by_hand(seed: int, n_steps: int, discount: float) -> None:
    rewards = np.random.default_rng(seed).normal(size=(3, 5))
    for reach in (5, n_steps):
        found = n_step_returns(rewards, reach, discount)
        for lane in range(3):
            for step in range(5):
                ahead = rewards[lane, step : min(step + reach, 5)]
                assert found[lane, step] == pytest.approx(sum(r * discount**k for k, r in enumerate(ahead)))


def test_centred_returns_are_relative_to_the_other_lanes() -> None:
    returns = np.array([[1.0, 2], [3, 4], [8, 0], [10, 20], [10, 20], [40, 80]])
    centred = centre_by_group(returns, 3)
    assert centred[0].tolist() == [1 - 5.5, 2 - 2] and centred[5].tolist() == [30, 60]
    np.testing.assert_allclose(centred.reshape(2, 3, 2).sum(axis=1), 0, atol=1e-12)
    # A lane's own return moves nothing that is subtracted from it.
    moved = returns.copy()
    moved[1] += 100
    np.testing.assert_allclose(centre_by_group(moved, 3)[1] - centred[1], 100)
    assert (centre_by_group(returns, 1) == returns).all()


@pytest.mark.parametrize("n_steps", [0, 3])
def test_states_are_rebuilt_from_indices(n_steps: int) -> None:
    """Capacity 30: the ring wraps in the middle of an episode, and comes back from a checkpoint the same."""
    config = with_learning(run_config(), n_steps=n_steps, lanes=2, warm_up_episodes=10_000)
    trainer = trainer_of(config)
    for _ in range(9):
        trainer.play_round()
    assert trainer.replay.ring.size == trainer.replay.ring.capacity == 60
    other = trainer_of(config)
    other.replay.ring.load_state_dict(trainer.replay.ring.state_dict())
    sample = other.replay.sample(100, torch.Generator().manual_seed(1))
    states = {"cleared": sample.state} | ({} if sample.following is None else {"next_cleared": sample.following})
    assert len(states) == 1 + (n_steps > 0)
    stored, env = trainer.replay.ring.data, VectorFuelBreakEnvironment(small_tiles()[:5], config.env)
    rows = torch.randint(60, (100,), generator=torch.Generator().manual_seed(1)).numpy()
    for mask, (observation, legal) in states.items():
        cleared = np.unpackbits(stored[mask].numpy()[rows], axis=1, count=100).astype(bool)
        expected = observe_anew(env, stored["tile"].numpy()[rows], cleared, stored["scenario_seed"].numpy()[rows])
        assert (observation.numpy() == expected).all()
        burnable = np.stack([small_tiles()[tile].landscape.burnable.ravel() for tile in stored["tile"][rows]])
        assert (legal.numpy() == (burnable & ~cleared)).all()


def test_n_step_transitions_lead_where_the_actions_lead() -> None:
    trainer = trainer_of(with_learning(run_config(), n_steps=3, discount=0.5, warm_up_episodes=10_000))
    trainer.play_round()
    data, budget = trainer.replay.ring.data, trainer.config.env.budget_cells
    for row in range(trainer.replay.ring.size):
        step = row % budget
        reach = min(3, budget - step)
        before, after = (np.unpackbits(data[name].numpy()[row], count=100) for name in ("cleared", "next_cleared"))
        added = data["action"][row : row + reach].tolist()
        assert sorted(np.flatnonzero(after & ~before)) == sorted(added) and before.sum() == step
        assert bool(data["terminated"][row]) == (step + reach == budget)
        assert float(data["factor"][row]) == 0.5**reach

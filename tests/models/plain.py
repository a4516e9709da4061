"""Networks and their inputs in plain float64 numbers, to hold the code under test against."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from data.bank import HALF_LIVES
from models.inputs import TradeInputs
from models.networks import Actor, Critic
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT, TARGET_PERCENTS

Floats = NDArray[np.float64]
STEP = TARGET_PERCENTS[1] - TARGET_PERCENTS[0]
PAST = len(HALF_LIVES)
"""Inputs that describe a stock's own past; as many follow of the market's."""


def numbers(part: Tensor) -> Floats:
    return np.asarray(part.detach().double().cpu().numpy())


def layers(parts: Sequence[Tensor], x: Floats) -> tuple[Floats, Floats]:
    """The second hidden layer and the outputs of a perceptron."""
    w1, b1, w2, b2, w3, b3 = map(numbers, parts)

    def silu(z: Floats) -> Floats:
        return np.asarray(z / (1 + np.exp(-z)))

    hidden = silu(silu(x @ w1 + b1[0]) @ w2 + b2[0])
    return hidden, np.asarray(hidden @ w3 + b3[0])


def perceptron(parts: Sequence[Tensor], x: Floats) -> Floats:
    return layers(parts, x)[1]


def seen_by_networks(inputs: TradeInputs, x: Floats) -> Floats:
    """(..., inputs - 1): a stock's past less that of the market, in the deviations of stocks."""
    raw = x[..., 1:] * inputs.std + inputs.mean
    found = x[..., 1:].copy()
    found[..., :PAST] = (raw[..., :PAST] - raw[..., PAST : 2 * PAST]) / inputs.std[:PAST]
    return np.asarray(found.clip(-10, 10))


def judged(actor: Actor, critic: Critic, place: tuple[int, int], x: Floats) -> tuple[Floats, Floats, Floats]:
    """By the networks of an agent and fold: (...,) what the choice adds, shifts, and (..., targets) rewards."""
    hidden, rewards = layers([part[place] for part in critic.reward.parts], x)
    choice = numbers(actor.choice[place])
    added, shift = np.moveaxis(hidden @ choice[:-1] + choice[-1], -1, 0)
    return added, shift, rewards


def target_of(start: float, shift: Floats) -> Floats:
    return np.asarray((start + STEP * shift).clip(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT))


def at(values: Floats, target: Floats) -> Floats:
    """(..., targets) values at (...,) sale targets in percent."""
    shape = np.broadcast_shapes(values.shape[:-1], target.shape)
    values = np.broadcast_to(values, (*shape, values.shape[-1])).reshape(-1, values.shape[-1])
    targets = np.broadcast_to(target, shape).ravel()
    found = [np.interp(own, TARGET_PERCENTS, row) for own, row in zip(targets, values, strict=True)]
    return np.reshape(found, shape)

"""The evaluation that this system replaces, in its honest form: each agent encodes a whole window for each day.

Networks and weights are those of the population, so the actions are the same; what differs is how often the same thing
is computed. As in the replaced system an agent copies and normalises its window, and nothing is kept from day to day.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.features import stationary_inputs
from data.market import Market
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from models.networks import DayEncoding, MarketEncoder

Encode = Callable[[MarketEncoder, Tensor, Tensor], DayEncoding]
"""From an encoder, a (columns, context, 10) window and the investable columns to the encoding of its last day."""


@dataclass(frozen=True)
class RawMarket:
    """Features before they are standardised, from which windows are copied."""

    features: Tensor
    """(days, columns, 9) float32, NaN where there is no value."""
    has_bar: Tensor
    """(days, columns) bool."""
    mean: Tensor
    std: Tensor
    clip: float
    investable: Tensor

    @classmethod
    def of(cls, market: Market, device: torch.device) -> RawMarket:
        """Compute the stationary features of a market, on a device."""
        return cls(
            torch.from_numpy(stationary_inputs(market.data_array)).to(device),
            torch.from_numpy(np.isfinite(market.data_array[..., 1])).to(device),
            torch.from_numpy(market.stats.mean).to(device),
            torch.from_numpy(market.stats.std).to(device),
            market.input_clip,
            torch.from_numpy(market.investable_columns).to(device),
        )

    def window(self, day: int, context_days: int) -> Tensor:
        """Copy and normalise the days up to `day`: (columns, context, 10)."""
        days = slice(day - context_days + 1, day + 1)
        window = self.features[days].clone()
        window.sub_(self.mean).div_(self.std).clamp_(-self.clip, self.clip).nan_to_num_(0.0)
        window = torch.cat((window, self.has_bar[days].unsqueeze(-1).float()), -1)
        return window.transpose(0, 1).contiguous()


def encode_whole_window(encoder: MarketEncoder, window: Tensor, investable: Tensor) -> DayEncoding:
    """Apply the standard causal convolutions, padded on the left: every layer computes every day of the window.

    Padding never reaches the last day, whose receptive field is exactly the window.
    """
    x = window.transpose(1, 2).unsqueeze(2)  # (N, 10, 1, days)
    for layer, (taps, dilation) in enumerate(encoder.layers):
        weight = encoder.weights[layer][0].contiguous(memory_format=torch.channels_last)
        padded = F.pad(x, ((taps - 1) * dilation, 0))
        y = F.relu(F.conv2d(padded, weight, encoder.biases[layer][0], dilation=(1, dilation)))
        x = y if layer == 0 else x + y
    columns = F.layer_norm(x[:, :, 0, -1], x.shape[1:2])  # (N, C)
    scores = encoder.queries[0] @ columns.T
    mixed = scores.masked_fill(window[:, -1, -1] <= 0, -1e9).softmax(-1) @ columns
    summary = F.relu(encoder.summary(mixed.flatten()[None, None]))
    return DayEncoding(columns[investable][None, None], summary)


def encode_last_day(encoder: MarketEncoder, window: Tensor, investable: Tensor) -> DayEncoding:
    """Encode the last day from what it depends on: each layer computes the days that the next one reads."""
    encoding: DayEncoding = encoder(window, investable)
    return encoding


@dataclass(frozen=True)
class NaiveEpisode:
    """One agent's actions on consecutive days, and the seconds they took."""

    actions: Tensor
    """(days, stocks, 2)."""
    seconds: float
    """All of it: window, encoding, action and step of the account."""


@torch.no_grad()
def play_naive(
    agent: DDPGAgent, env: Portfolio, market: RawMarket, start: int, days: int, encode: Encode
) -> NaiveEpisode:
    """Play the first `days` days of one agent's episode from `start`, in an environment with one account."""
    device = market.features.device
    env.reset(torch.tensor([start], device=device))
    actions = []
    started = time.perf_counter()
    for day in range(start, start + days):
        window = market.window(day, agent.context_days)
        encoding = encode(agent.networks.encoder, window, market.investable)
        positions, account = env.positions(), env.account()
        action = agent.networks.actor(encoding.stocks, encoding.summary, positions.features[None], account[None])[0]
        env.step(action)
        actions.append(action[0])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return NaiveEpisode(torch.stack(actions), time.perf_counter() - started)


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two sets of actions: coefficients in [0, 10], targets in [10, 50] percent."""
    return float((one - other).abs().max())


class WatchedEnvironment(Portfolio):
    """An environment that keeps the actions since the last reset, so that two ways of acting can be compared."""

    actions: list[Tensor]

    def reset(self, start: Tensor, *, steps: int | None = None, trading_steps: int | None = None) -> None:
        """Reset as the parent does, and forget the actions."""
        self.actions = []
        super().reset(start, steps=steps, trading_steps=trading_steps)

    def step(self, action: Tensor) -> Tensor:
        """Step as the parent does, and keep the action."""
        self.actions.append(action.clone())
        return super().step(action)

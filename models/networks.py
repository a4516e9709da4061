"""Market encoder, actor and critic of a whole population: parameters are stacked along a first dimension.

Shapes: A agents, N columns of the market, T days, n investable stocks, C encoder channels, H hidden units, B states,
K position slots, m orders considered. Everything that acts on stocks shares its weights over them, so that the order
of the tickers does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.config.trader import NetworkConfig
from utils.spaces import (
    ACCOUNT_FEATURES,
    ACTION_FEATURES,
    MAX_COEFFICIENT,
    MAX_TARGET_PERCENT,
    MIN_TARGET_PERCENT,
    POSITION_FEATURES,
    SIZE,
)

MARKET_CHANNELS = 10
_TAPS = 8
_MOST_TAPS = 16
_QUERY_GAIN = 3.0
"""Standard deviation, at the start, of a query's scores over columns."""
Agents = slice | Tensor
"""Which agents of a stack: a slice, or their indices."""
ALL = slice(None)


@dataclass(frozen=True)
class DayEncoding:
    """The market on each of T days, as encoded for the actor and the critics."""

    stocks: Tensor
    """(A, T, n, C) the investable stocks; A is 1 where all agents share an encoder."""
    summary: Tensor
    """(A, T, H) all columns, by attention."""

    def at(self, day_offset: Tensor) -> tuple[Tensor, Tensor]:
        """Look up the encodings of (A, B) days, counted along T: (A, B, n, C) and (A, B, H)."""
        agent = torch.arange(len(day_offset), device=day_offset.device)[:, None]
        stocks = self.stocks.expand(len(day_offset), -1, -1, -1)
        return stocks[agent, day_offset], self.summary.expand(len(day_offset), -1, -1)[agent, day_offset]

    def of(self, agents: Agents) -> DayEncoding:
        """Return the encodings of some agents; one that all agents share stays as it is."""
        return self if len(self.stocks) == 1 else DayEncoding(self.stocks[agents], self.summary[agents])

    @staticmethod
    def cat(parts: Sequence[DayEncoding], dim: int) -> DayEncoding:
        """Join encodings of agents (dim 0) or days (dim 1)."""
        return DayEncoding(torch.cat([p.stocks for p in parts], dim), torch.cat([p.summary for p in parts], dim))

    def detach(self) -> DayEncoding:
        """Cut the values from the graph."""
        return DayEncoding(self.stocks.detach(), self.summary.detach())


@dataclass(frozen=True)
class StateBatch:
    """States without their market part, which a `DayEncoding` of T days holds."""

    day_offset: Tensor
    """(A, B) int64 place of the state's day along T."""
    slot_stock: Tensor
    """(A, B, K) int64; n where the slot is empty."""
    slot_features: Tensor
    """(A, B, K, 6)."""
    account: Tensor
    """(A, B, 3)."""


class StackedLinear(nn.Module):
    """One affine map an agent: (A, ..., in) to (A, ..., out)."""

    def __init__(self, population: int, inputs: int, outputs: int, *, gain: float = math.sqrt(2.0)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(population, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(population, 1, outputs))
        nn.init.normal_(self.weight, std=gain / math.sqrt(inputs))

    def forward(self, x: Tensor, agents: Agents = ALL) -> Tensor:
        """Apply to all inputs of each agent."""
        weight, bias = self.weight[agents], self.bias[agents]
        flat = x.reshape(len(x), -1, x.shape[-1])
        return torch.baddbmm(bias, flat, weight).view(*x.shape[:-1], weight.shape[-1])


def causal_layers(context_days: int) -> list[tuple[int, int]]:
    """Choose (taps, dilation) of the convolutions, whose receptive field is exactly the context.

    The widest dilation comes first: a layer computes only the days that later layers read, so that a block of T days
    costs little more than T, not T + context, evaluations of each later layer.
    """
    layers, field_days = [], 1
    while field_days * _TAPS <= context_days:
        layers.append((_TAPS, field_days))
        field_days *= _TAPS
    rest = context_days - field_days
    if rest:
        fewest = math.ceil(rest / field_days)
        steps = next((steps for steps in range(fewest, _MOST_TAPS) if rest % steps == 0), fewest)
        layers.append((steps + 1, rest // steps))
        if rest % steps:
            layers.append((2, rest % steps))
    return sorted(layers, key=lambda layer: layer[1], reverse=True)


class MarketEncoder(nn.Module):
    """Causal convolution over the days of each column, then a summary of all columns by attention."""

    def __init__(self, population: int, config: NetworkConfig, context_days: int) -> None:
        super().__init__()
        channels = config.encoder_channels
        self.layers = causal_layers(context_days)
        self.context_days = context_days
        self.precision = config.precision
        sizes = [MARKET_CHANNELS] + [channels] * (len(self.layers) - 1)
        self.weights = nn.ParameterList(
            torch.randn(population, channels, inputs, 1, taps) * math.sqrt(2.0 / (inputs * taps))
            for inputs, (taps, _) in zip(sizes, self.layers, strict=True)
        )
        self.biases = nn.ParameterList(torch.zeros(population, channels) for _ in self.layers)
        # So large that each query picks out some columns from the start: an even mean of hundreds of columns hides what
        # a single one of them says, and what is hidden has next to no gradient to be found by.
        picky = _QUERY_GAIN / math.sqrt(channels)
        self.queries = nn.Parameter(picky * torch.randn(population, config.summary_queries, channels))
        self.summary = StackedLinear(population, config.summary_queries * channels, config.hidden_units)

    def forward(self, inputs: Tensor, investable: Tensor, agents: slice = ALL) -> DayEncoding:
        """Encode all days whose whole context is given.

        Args:
            inputs: (N, context_days - 1 + T, 10) network inputs of consecutive days.
            investable: (n,) columns that may be bought.
        """
        members = range(len(self.queries))[agents]
        # One convolution an agent: each sees the channels-last layout for which small kernels are fastest.
        low = self.precision == "bfloat16" or (self.precision == "auto" and inputs.is_cuda)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=low):
            columns = torch.stack([self._convolve(inputs, agent) for agent in members])
        columns = F.layer_norm(columns.to(inputs.dtype), columns.shape[-1:])
        is_valid = inputs[:, self.context_days - 1 :, -1].T > 0  # (T, N)
        stocks = columns.index_select(1, investable).transpose(1, 2).contiguous()
        return DayEncoding(stocks, self._summarise(columns, is_valid, agents))

    def _convolve(self, inputs: Tensor, agent: int) -> Tensor:
        """Convolve (N, days, 10) to (N, T, C) with one agent's weights."""
        x = inputs.transpose(1, 2).unsqueeze(2)  # (N, 10, 1, days), channels last in memory
        for layer, (_, dilation) in enumerate(self.layers):
            weight = self.weights[layer][agent].contiguous(memory_format=torch.channels_last)
            y = F.relu(F.conv2d(x, weight, self.biases[layer][agent], dilation=(1, dilation)))
            x = y if layer == 0 else x[..., -y.shape[-1] :] + y
        return x.squeeze(2).transpose(1, 2)

    def _summarise(self, columns: Tensor, is_valid: Tensor, agents: slice) -> Tensor:
        """Attend to the columns that trade by learned queries: (A, N, T, C) to (A, T, H)."""
        scores = torch.einsum("antc,aqc->atqn", columns, self.queries[agents])
        scores = scores.masked_fill(~is_valid[None, :, None, :], -1e9)
        mixed = torch.einsum("atqn,antc->atqc", scores.softmax(-1), columns)
        return F.relu(self.summary(mixed.flatten(2), agents))


class _Saturating(torch.autograd.Function):
    """A sigmoid that reaches its bounds: its gradient has a floor, and stops only what pushes further out.

    The plain sigmoid's gradient vanishes where the best action lies (the largest size), and clipping would make all
    saturated stocks equal, although the coefficient also ranks them.
    """

    FLOOR = 0.05
    BOUND = 7.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sigmoid()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        (grad,) = grads
        # Descent moves x against the gradient.
        outward = ((x > _Saturating.BOUND) & (grad < 0)) | ((x < -_Saturating.BOUND) & (grad > 0))
        slope = (y * (1 - y)).clamp(min=_Saturating.FLOOR)
        return cast(Tensor, (grad * slope).masked_fill(outward, 0.0))


class Actor(nn.Module):
    """For each investable stock: its order's coefficient in (0, 10) and sale target in (10, 50) percent.

    Only stocks that are not held can be ordered, so a stock's own position says nothing about its order; the open
    positions count together, weighted by their size: they tell when cash will be free.
    """

    def __init__(self, population: int, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden_units
        self.stock = StackedLinear(population, config.encoder_channels, hidden, gain=1.0)
        self.state = StackedLinear(population, hidden + POSITION_FEATURES + ACCOUNT_FEATURES, hidden, gain=1.0)
        self.hidden = StackedLinear(population, hidden, hidden)
        self.out = StackedLinear(population, hidden, ACTION_FEATURES, gain=0.1)

    def forward(
        self, stocks: Tensor, summary: Tensor, positions: Tensor, account: Tensor, agents: Agents = ALL
    ) -> Tensor:
        """Act in B states.

        Args:
            stocks: (A, B, n, C) and summary (A, B, H): encodings of the states' days.
            positions: (A, B, any, 6) open positions in any order, zero rows where nothing is held.
            account: (A, B, 3).

        Returns:
            (A, B, n, 2): coefficient, sale target in percent.
        """
        pooled = (positions * positions[..., SIZE : SIZE + 1]).sum(2)
        state = self.state(torch.cat((summary, pooled, account), -1), agents).unsqueeze(2)
        x = F.relu(self.stock(stocks, agents) + state)
        share = _Saturating.apply(self.out(F.relu(self.hidden(x, agents)), agents))
        coefficient = share[..., 0] * MAX_COEFFICIENT
        target = share[..., 1] * (MAX_TARGET_PERCENT - MIN_TARGET_PERCENT) + MIN_TARGET_PERCENT
        return torch.stack((coefficient, target), -1)


class Critic(nn.Module):
    """Q(s, orders) = state value + sum of order values.

    `structured`: order value = size x (reward of the trade + change in the value of the cash). The reward does not
    depend on the account; the value of the cash does. `plain`: size and account are inputs of one network.
    """

    def __init__(self, population: int, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden_units
        self.is_structured = config.critic == "structured"
        of_account = 0 if self.is_structured else ACCOUNT_FEATURES
        self.order_stock = StackedLinear(population, config.encoder_channels + 2, hidden, gain=1.0)
        self.order_state = StackedLinear(population, hidden + of_account, hidden, gain=1.0)
        self.order_hidden = StackedLinear(population, hidden, hidden)
        self.order_out = StackedLinear(population, hidden, 1, gain=0.1)
        if self.is_structured:
            self.cash_hidden = StackedLinear(population, hidden + ACCOUNT_FEATURES, hidden)
            self.cash_out = StackedLinear(population, hidden, 1, gain=0.1)
        self.slot = StackedLinear(population, config.encoder_channels + POSITION_FEATURES, hidden)
        self.value_hidden = StackedLinear(population, 2 * hidden + ACCOUNT_FEATURES, hidden)
        self.value_out = StackedLinear(population, hidden, 1, gain=0.1)

    def order_value(
        self,
        stocks: Tensor,
        summary: Tensor,
        account: Tensor,
        size: Tensor,
        target_percent: Tensor,
        agents: Agents = ALL,
        *,
        learns_trades: bool = True,
    ) -> Tensor:
        """Value each of m orders, taken alone.

        Args:
            stocks: (A, B, m, C) encodings of the ordered stocks.
            size: (A, B, m) in [0, 1], as a share of the largest order.
            target_percent: (A, B, m).
            learns_trades: False stops the gradient to what trades earn (of the structured form).
        """
        if not self.is_structured:
            return self._of_order(stocks, torch.cat((summary, account), -1), size, target_percent, agents)
        earns = self.trade_value(stocks, summary, target_percent, agents)
        state = torch.cat((summary, account), -1)
        cash = self.cash_out(F.relu(self.cash_hidden(state, agents)), agents)
        return cast(Tensor, size * ((earns if learns_trades else earns.detach()) + cash))

    def trade_value(self, stocks: Tensor, summary: Tensor, target_percent: Tensor, agents: Agents = ALL) -> Tensor:
        """Predict the reward of the largest order of each of m stocks, (A, B, m); structured form only."""
        return self._of_order(stocks, summary, torch.zeros_like(target_percent), target_percent, agents)

    def _of_order(self, stocks: Tensor, state: Tensor, size: Tensor, target_percent: Tensor, agents: Agents) -> Tensor:
        target = (target_percent - MIN_TARGET_PERCENT) / (MAX_TARGET_PERCENT - MIN_TARGET_PERCENT)
        order = torch.cat((stocks, target.unsqueeze(-1), size.unsqueeze(-1)), -1)
        x = F.relu(self.order_stock(order, agents) + self.order_state(state, agents).unsqueeze(2))
        return cast(Tensor, self.order_out(F.relu(self.order_hidden(x, agents)), agents).squeeze(-1))

    def state_value(
        self, slot_stocks: Tensor, slot_features: Tensor, summary: Tensor, account: Tensor, agents: Agents = ALL
    ) -> Tensor:
        """Value the state itself: (A, B). Open positions, (A, B, K, C) and (A, B, K, 6), count by their size."""
        slots = F.relu(self.slot(torch.cat((slot_stocks, slot_features), -1), agents))
        pooled = (slots * slot_features[..., SIZE : SIZE + 1]).sum(2)
        x = torch.cat((pooled, summary, account), -1)
        return cast(Tensor, self.value_out(F.relu(self.value_hidden(x, agents)), agents).squeeze(-1))


class AgentNetworks(nn.Module):
    """Encoder, actor and critics of a population; the encoder is one for all agents if the representation is shared."""

    def __init__(self, population: int, config: NetworkConfig, context_days: int) -> None:
        super().__init__()
        self.population = population
        self.is_shared = config.representation == "shared"
        self.encoder = MarketEncoder(1 if self.is_shared else population, config, context_days)
        self.actor = Actor(population, config)
        self.critics = nn.ModuleList(Critic(population, config) for _ in range(2 if config.twin_critics else 1))

    def each_critic(self) -> list[Critic]:
        """List the critics, one or two."""
        return cast(list[Critic], list(self.critics))

    @property
    def context_days(self) -> int:
        """Days that an encoding sees, the encoded day included."""
        return self.encoder.context_days

    def encode_distinct(self, inputs: Tensor, investable: Tensor, agents: slice = ALL) -> DayEncoding:
        """Encode days for the chosen agents, or once for all of them where the encoder is shared."""
        return cast(DayEncoding, self.encoder(inputs, investable, ALL if self.is_shared else agents))

    def is_stacked(self, name: str) -> bool:
        """Tell whether the named parameter has a first dimension of agents."""
        return not (self.is_shared and name.startswith("encoder."))


def gather_stocks(encoding: DayEncoding, day_offset: Tensor, stock: Tensor) -> Tensor:
    """Look up encodings (A, B, m, C) of stocks (A, B, m) on the (A, B) days; zeros where the stock index is n."""
    agents, days, stocks, channels = encoding.stocks.shape
    flat = encoding.stocks.reshape(agents, days * stocks, channels).expand(len(stock), -1, -1)
    row = day_offset.unsqueeze(-1) * stocks + stock.clamp(max=stocks - 1)
    index = row.flatten(1).unsqueeze(-1).expand(-1, -1, channels)
    found = flat.gather(1, index).view(*stock.shape, channels)
    return found * (stock < stocks).unsqueeze(-1)

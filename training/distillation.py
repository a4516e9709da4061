"""Crossover that preserves behaviour: a child learns, state by state, the better of its parents' actions.

Proximal distilled evolutionary reinforcement learning (Bodnar, Day and Lio 2020), with the filter by both parents'
critics, since here every agent has its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from data.market import MarketTensors
from models.networks import AgentNetworks, DayEncoding, StateBatch
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.ddpg import OrderRules, action_values, candidate_stocks, policy_action, relaxed_choice
from training.evolution import Succession
from utils.config.trader import LearningConfig
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT

_STATES = 64
_BLOCK_DAYS = 16


@dataclass(frozen=True)
class Lesson:
    """States of each child with the actions to learn."""

    stocks: Tensor
    """(children, B, n, C) encodings by the parent's encoder, which the child inherits."""
    summary: Tensor
    positions: Tensor
    account: Tensor
    action: Tensor
    """(children, B, n, 2)."""


@torch.no_grad()
def prepare_lessons(
    population: Population,
    succession: Succession,
    replay: ReplayBuffer,
    market: MarketTensors,
    rules: OrderRules,
    steps: int,
    generator: torch.Generator,
) -> list[Lesson]:
    """What the children are to learn, one lesson a gradient step; call it while the parents are still in place."""
    rows = succession.is_child.nonzero().flatten()
    if not len(rows):
        return []
    parents, mates = (index[rows].to(population.device) for index in (succession.parents, succession.mates))
    return [_lesson(population.networks, parents, mates, replay, market, rules, generator) for _ in range(steps)]


def _lesson(
    networks: AgentNetworks,
    parents: Tensor,
    mates: Tensor,
    replay: ReplayBuffer,
    market: MarketTensors,
    rules: OrderRules,
    generator: torch.Generator,
) -> Lesson:
    first_day, batch = replay.sample_block(_BLOCK_DAYS, len(parents), _STATES, generator)
    days = first_day + torch.arange(1 - networks.context_days, _BLOCK_DAYS, device=first_day.device)
    inputs = market.inputs.index_select(1, days.clamp(max=market.days - 1))
    encoding = networks.encode_distinct(inputs, market.investable)
    state = StateBatch(batch.day - first_day, batch.slot_stock, batch.slot_features, batch.account)
    candidates = candidate_stocks(market, batch.day, state)
    views = {agents: _view(encoding, agents) for agents in (parents, mates)}
    actions: list[Tensor] = []
    known: dict[Tensor, tuple[Tensor, Tensor]] = {}
    for agents, view in views.items():
        action, stocks, summary = policy_action(networks, view, state, agents)
        actions.append(action)
        known[agents] = (stocks, summary)
    worth: list[Tensor] = []
    critic = networks.each_critic()[0]
    for action in actions:
        opinions = [action_values(critic, action, *known[judge], state.account, rules, judge) for judge in views]
        worth.append(relaxed_choice(action, torch.stack(opinions).sum(0), candidates, rules))
    chosen = torch.where((worth[1] > worth[0])[..., None, None], actions[1], actions[0])
    return Lesson(*known[parents], state.slot_features, state.account, chosen)


def _view(encoding: DayEncoding, agents: Tensor) -> DayEncoding:
    """The encodings of the given agents; what all share stays as it is."""
    return encoding if len(encoding.stocks) == 1 else DayEncoding(encoding.stocks[agents], encoding.summary[agents])


def teach(population: Population, succession: Succession, lessons: list[Lesson], config: LearningConfig) -> None:
    """Fit the children's actors to their lessons; nobody else's weights move, optimiser moments stay as inherited."""
    children = succession.is_child.nonzero().flatten().to(population.device)
    actor = population.networks.actor
    # Rows without a gradient have zero moments in a fresh Adam, which leaves them as they are, bit for bit.
    optimizer = torch.optim.Adam(actor.parameters(), lr=config.actor_learning_rate)
    scale = torch.tensor((MAX_COEFFICIENT, MAX_TARGET_PERCENT), device=population.device)
    for lesson in lessons:
        optimizer.zero_grad()
        with torch.enable_grad():
            action = actor(lesson.stocks, lesson.summary, lesson.positions, lesson.account, children)
            loss = ((action - lesson.action) / scale).square().mean(dim=(1, 2, 3)).sum()
        loss.backward()
        optimizer.step()

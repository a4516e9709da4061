"""The population's updates by agents apart, in the plain style of Stable-Baselines3 and CleanRL.

Each agent has modules and optimisers of its own, and a loop updates one agent after the other by plain autograd.
Networks, losses and batches are those of `training.learner.Learner`, so the parameters come out alike. The ratio of the
times is what one stacked computation saves.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.environment import threads
from benchmarks.speed.harness import CPU, Row
from benchmarks.speed.updates import learner_maker
from data.market import Market
from models.networks import ALL, Agents, DayEncoding, StackedLinear, StateBatch
from models.population import Population, soft_update
from models.replay_buffer import TransitionBatch
from training.ddpg import (
    actor_loss,
    critic_loss,
    executed_value,
    hindsight_values,
    may_order,
    policy_value,
    target_value,
    td_target,
)
from training.hindsight import HindsightOrders, hindsight_loss
from training.learner import Learner, with_noise
from utils.config.trader import Config, LearningConfig

Block = tuple[Tensor, Tensor, HindsightOrders]
"""As `Hindsight.draw_block` returns it: the first day, offsets of days, orders."""
GROUP = "a core's updates of the whole population, quick profile, one thread"


class OwnLinear(nn.Linear):
    """One agent's layer where the population has a stacked one, which multiplies narrow matrices more slowly."""

    @classmethod
    def of(cls, layer: StackedLinear) -> OwnLinear:
        """Copy the layer of a population of one."""
        own = cls(*layer.weight.shape[1:])
        own.weight.data.copy_(layer.weight[0].T)
        own.bias.data.copy_(layer.bias[0, 0])
        return own

    def forward(self, x: Tensor, agents: Agents = ALL) -> Tensor:
        """Apply to all inputs; the only agent is this one."""
        return F.linear(x, self.weight, self.bias)


class SeparateAgent:
    """One agent's networks, targets and optimisers."""

    def __init__(self, population: Population, index: int, config: LearningConfig) -> None:
        """Copy an agent of a population that has not learned yet."""
        self.networks = population.agent(index).networks.requires_grad_(True)
        for module in list(self.networks.modules()):
            for name, layer in module.named_children():
                if isinstance(layer, StackedLinear):
                    setattr(module, name, OwnLinear.of(layer))
        self.targets = copy.deepcopy(self.networks).requires_grad_(False)
        self.actor_optimizer = torch.optim.Adam(self.networks.actor.parameters(), lr=config.actor_learning_rate)
        queries = self.networks.encoder.queries
        self.critic_parameters = [*self.networks.encoder.parameters(), *self.networks.critics.parameters()]
        groups = [
            {
                "params": [p for p in self.critic_parameters if p is not queries],
                "weight_decay": config.critic_weight_decay,
            },
            {"params": [queries], "weight_decay": config.query_weight_decay},
        ]
        self.critic_optimizer = torch.optim.AdamW(groups, lr=config.critic_learning_rate)


class SeparateAgents:
    """The agents of a learner's population, each updated on its own by what the learner would have drawn for it."""

    def __init__(self, learner: Learner) -> None:
        assert learner.hindsight is not None and not learner.population.is_shared
        self.learner, self.hindsight = learner, learner.hindsight
        self.agents = [
            SeparateAgent(learner.population, index, learner.config) for index in range(learner.population.size)
        ]

    def update(self, generator: torch.Generator) -> None:
        """Make the step of every agent that `Learner.update` makes, given the same random numbers."""
        learner, config = self.learner, self.learner.config
        shape = (len(self.agents), config.batch_size)
        first_day, batch = learner.replay.sample_block(learner.block_days, *shape, generator)
        blocks = []
        for _ in range(config.hindsight_steps):
            known = self.hindsight.draw_block(learner.block_days, shape, config.hindsight_orders, generator)
            clean = self._inputs(known[0], learner.block_days)
            blocks.append((known, with_noise(clean, config.input_noise, generator)))
        inputs = self._inputs(first_day, learner.block_days + 1)
        for index, agent in enumerate(self.agents):
            own = slice(index, index + 1)
            for known, noisy in blocks:
                self._learn_hindsight(agent, own, known, noisy, batch.of(own) if known is blocks[-1][0] else None)
            self._learn_transitions(agent, first_day, inputs, batch.of(own))
            soft_update(agent.targets, agent.networks, config.tau)

    def _inputs(self, first_day: Tensor, length: int) -> Tensor:
        context = self.learner.population.networks.context_days
        return self.learner.market.inputs[:, int(first_day) + 1 - context : int(first_day) + length]

    def _learn_hindsight(
        self, agent: SeparateAgent, own: slice, known: Block, inputs: Tensor, batch: TransitionBatch | None
    ) -> None:
        """Step the critics on what trades earn, and the actor in the accounts of a batch if there is one."""
        encoding = agent.networks.encode_distinct(inputs, self.learner.market.investable)
        day_offset, orders = known[1][own], known[2].of(own)
        if batch is not None:
            state = StateBatch(day_offset, batch.slot_stock, batch.slot_features, batch.account)
            self._step_actor(agent, encoding.detach(), state, known[0] + day_offset)
        self._step_critics(
            agent, hindsight_loss(hindsight_values(agent.networks, encoding, day_offset, orders, ALL), orders)
        )

    def _step_actor(self, agent: SeparateAgent, encoding: DayEncoding, state: StateBatch, day: Tensor) -> None:
        candidates = may_order(self.learner.market, day, state)
        loss = actor_loss(
            policy_value(
                agent.networks,
                encoding,
                state,
                candidates,
                self.learner.limits,
                self.learner.config.selection_temperature,
                ALL,
            )
        )
        agent.actor_optimizer.zero_grad()
        loss.sum().backward()
        nn.utils.clip_grad_norm_(agent.networks.actor.parameters(), self.learner.config.max_gradient_norm)
        agent.actor_optimizer.step()

    def _step_critics(self, agent: SeparateAgent, loss: Tensor) -> None:
        agent.critic_optimizer.zero_grad()
        loss.sum().backward()
        nn.utils.clip_grad_norm_(agent.critic_parameters, self.learner.config.max_gradient_norm)
        agent.critic_optimizer.step()

    def _learn_transitions(
        self, agent: SeparateAgent, first_day: Tensor, inputs: Tensor, batch: TransitionBatch
    ) -> None:
        """Step the critics by the temporal difference, which leaves the encoder and what trades earn alone."""
        market, limits = self.learner.market, self.learner.limits
        day_offset = batch.day - first_day
        state = StateBatch(day_offset, batch.slot_stock, batch.slot_features, batch.account)
        next_state = StateBatch(day_offset, batch.next_slot_stock, batch.next_slot_features, batch.next_account)
        with torch.no_grad():
            encoding = agent.networks.encode_distinct(inputs[:, :-1], market.investable)
            next_encoding = agent.targets.encode_distinct(inputs[:, 1:], market.investable)
            candidates = may_order(market, batch.day + 1, next_state)
            next_value = target_value(agent.targets, next_encoding, next_state, candidates, limits, ALL)
            target = td_target(batch.reward, batch.terminated, next_value, self.learner.config.gamma)
        values = [
            executed_value(critic, encoding, batch, state, ALL, learns_trades=False)
            for critic in agent.networks.each_critic()
        ]
        self._step_critics(agent, critic_loss(values, target))


def separate_agents_rows(config: Config, market: Market, *, repeats: int) -> tuple[list[Row], float]:
    """Time both forms of the same update in turn; their rows, and the separate agents' time over the learner's."""
    size = config.evolution.population_size
    make = learner_maker(config, market, CPU)
    stacked, separate = make(size), SeparateAgents(make(size))
    with threads(1):
        times = [(_seconds(stacked.update), _seconds(separate.update)) for _ in range(1 + repeats)][1:]
    ratio = statistics.median(theirs / ours for ours, theirs in times)
    seconds = [statistics.median(column) for column in zip(*times, strict=True)]
    return [
        Row(GROUP, f"{size} agents stacked, as trained", seconds[0], "s", ratio, "separate / stacked"),
        Row(GROUP, f"{size} separate agents, the same batches and results", seconds[1], "s"),
    ], ratio


def _seconds(update: Callable[[torch.Generator], object]) -> float:
    """Return the processor time of an update: other processes then cost only the caches."""
    generator = torch.Generator().manual_seed(0)
    started = time.process_time()
    update(generator)
    return time.process_time() - started

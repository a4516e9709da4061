"""Population DDPG on flat observations and actions (Lillicrap et al. 2016, algorithm 1).

The critics step first, then the actors against the new critics, then the targets follow. Actions inside are in [-1, 1];
`ActionRange` maps them to the environment's. Shapes: A agents, B states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.pendulum.mlp import MLP, MLPRows, agent_groups, rows_of
from training.ddpg import actor_loss, clip_gradients, critic_loss, td_target
from utils.tensor_ring import TensorRing

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class ControlConfig:
    """Settings of one DDPG agent; the defaults are Stable-Baselines3's, with a discount fit for short episodes."""

    hidden: tuple[int, ...] = (256, 256)
    gamma: float = 0.98
    tau: float = 0.005
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    batch_size: int = 256
    exploration_noise: float = 0.1
    """Standard deviation of Gaussian noise on actions in [-1, 1]."""
    max_gradient_norm: float = float("inf")


@dataclass(frozen=True)
class Widths:
    """Numbers of a flat observation and action."""

    observation: int
    action: int

    @property
    def transition(self) -> int:
        """Numbers of a transition: observation, action, next observation, reward, terminated."""
        return 2 * self.observation + self.action + 2


@dataclass(frozen=True)
class ControlBatch:
    """A minibatch for each agent, packed so that one gather fetches it and the critic's input needs no copy."""

    rows: Tensor
    """(A, B, transition): observation, action, next observation, reward, terminated (1 or 0; a truncation is 0)."""
    widths: Widths

    @property
    def observation(self) -> Tensor:
        """(A, B, observation)."""
        return self.rows[..., : self.widths.observation]

    @property
    def observation_action(self) -> Tensor:
        """(A, B, observation + action)."""
        return self.rows[..., : self.widths.observation + self.widths.action]

    @property
    def next_observation(self) -> Tensor:
        """(A, B, observation)."""
        return self.rows[..., self.widths.observation + self.widths.action : -2]

    @property
    def reward(self) -> Tensor:
        """(A, B)."""
        return self.rows[..., -2]

    @property
    def terminated(self) -> Tensor:
        """(A, B) bool."""
        return self.rows[..., -1] > 0


def pack(observation: Tensor, action: Tensor, next_observation: Tensor, reward: Tensor, terminated: Tensor) -> Tensor:
    """Transitions (..., transition) from their parts, of which reward and terminated have no last dimension."""
    ending = torch.stack((reward, terminated.to(reward)), -1)
    return torch.cat((observation, action, next_observation, ending), -1)


class ControlReplay:
    """Transitions of all lanes of a vector environment; agents sample only from the lanes of their own experiment."""

    def __init__(
        self, capacity: int, lanes: int, experiments: int, widths: Widths, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate for `capacity` steps of the vector environment, whose lanes lie experiment by experiment."""
        self.widths, self.lanes, self.experiments = widths, lanes, experiments
        self.ring = TensorRing(capacity, {"transition": ((lanes, widths.transition), torch.float32)}, device)
        self._rows = self.ring.data["transition"].view(-1, widths.transition)

    def add(self, transitions: Tensor) -> None:
        """Append one step of all lanes, (lanes, transition)."""
        self.ring.add({"transition": transitions.unsqueeze(0)})

    def sample(self, agents: int, batch: int, generator: torch.Generator) -> ControlBatch:
        """Draw (agents, batch) transitions, each agent from the lanes of its experiment."""
        device = self._rows.device
        own_lanes = self.lanes // self.experiments
        drawn = torch.randint(self.ring.size * own_lanes, (agents, batch), generator=generator, device=device)
        step, lane = drawn // own_lanes, drawn % own_lanes
        experiment = torch.arange(agents, device=device)[:, None] // (agents // self.experiments)
        index = step * self.lanes + experiment * own_lanes + lane
        rows = self._rows.index_select(0, index.flatten())
        return ControlBatch(rows.view(agents, batch, -1), self.widths)


def critic_loss_gradient(value: Tensor, target: Tensor) -> Tensor:
    """Derivative of `training.ddpg.critic_loss` for one critic's values, (..., B) each."""
    return (value - target).mul_(2 / value.shape[-1])


def actor_loss_gradient(value: Tensor) -> Tensor:
    """Derivative of `training.ddpg.actor_loss` for the values, (..., B, 1) each."""
    return torch.full_like(value, -1 / value.shape[-2])


class _Adam:
    """Adam (Kingma and Ba 2015) in place on stacked parameters, whose moments can follow their agent."""

    def __init__(self, network: MLP, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.parameters = network.parameters
        self.exp_avg = [torch.zeros_like(p) for p in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.parameters]
        self.step_count = torch.zeros((), device=self.parameters[0].device)

    def rows(self, agents: slice) -> Callable[[list[Tensor]], None]:
        """The step of some agents, given their gradients."""
        parameters, exp_avg, exp_avg_sq = (
            rows_of(stacks, agents) for stacks in (self.parameters, self.exp_avg, self.exp_avg_sq)
        )
        counts = [self.step_count] * len(parameters)

        def step(gradients: list[Tensor]) -> None:
            torch._fused_adam_(
                parameters,
                gradients,
                exp_avg,
                exp_avg_sq,
                [],
                counts,
                lr=self.learning_rate,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                weight_decay=0.0,
                eps=_EPSILON,
                amsgrad=False,
                maximize=False,
            )

        return step


class ControlLearner:
    """Actors, critics, their targets and optimisers of A agents; every update moves all agents by one step."""

    def __init__(
        self,
        population: int,
        widths: Widths,
        config: ControlConfig,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.population, self.widths, self.config = population, widths, config
        self.device = torch.device(device)
        kind: Any = {"generator": generator, "dtype": dtype, "device": device}
        self.actor = MLP(population, (widths.observation, *config.hidden, widths.action), **kind)
        self.critic = MLP(population, (widths.observation + widths.action, *config.hidden, 1), **kind)
        self.target_actor, self.target_critic = self.actor.clone(), self.critic.clone()
        self.actor_adam = _Adam(self.actor, config.actor_learning_rate)
        self.critic_adam = _Adam(self.critic, config.critic_learning_rate)
        self._groups = [_Group(self, agents) for agents in agent_groups(population, self.device)]

    def act(self, observation: Tensor) -> Tensor:
        """Actions of the online actors in [-1, 1] without noise: (A, B, observation) to (A, B, action)."""
        return self._act(observation, [group.actor for group in self._groups])

    def act_averaged(self, observation: Tensor) -> Tensor:
        """The same of the target actors, the average of the last 1 / tau online ones (Polyak and Juditsky 1992).

        An online actor may be far worse for a hundred steps than before and after them; its average hardly is.
        """
        return self._act(observation, [group.target_actor for group in self._groups])

    @torch.no_grad()
    def _act(self, observation: Tensor, actors: list[MLPRows]) -> Tensor:
        outputs = [
            actor.output(group.take(observation)).tanh_() for actor, group in zip(actors, self._groups, strict=True)
        ]
        return torch.stack(outputs) if outputs[0].dim() == 2 else torch.cat(outputs)

    @torch.no_grad()
    def update(self, batch: ControlBatch) -> tuple[Tensor, Tensor]:
        """One step of every agent's critic, actor and targets; their losses before the step, (A,) each."""
        for optimizer in (self.critic_adam, self.actor_adam):
            optimizer.step_count += 1
        values = [group.update(batch) for group in self._groups]
        size = batch.rows.shape[:2]
        value, target, policy_value = (torch.stack(column).view(size) for column in zip(*values, strict=True))
        return critic_loss([value], target), actor_loss(policy_value)

    def stacks(self) -> dict[str, Tensor]:
        """Every tensor whose rows belong to agents, named as `training.evolution` expects them."""
        stacks: dict[str, Tensor] = {}
        for part, adam in (("actor", self.actor_adam), ("critic", self.critic_adam)):
            names = list(getattr(self, part).named())
            for prefix, tensors in (
                ("networks", adam.parameters),
                ("targets", getattr(self, f"target_{part}").parameters),
                ("exp_avg", adam.exp_avg),
                ("exp_avg_sq", adam.exp_avg_sq),
            ):
                stacks |= {f"{prefix}.{part}.{name}": t for name, t in zip(names, tensors, strict=True)}
        return stacks

    def write(self, stacks: Mapping[str, Tensor]) -> None:
        """Replace all rows in place by those of `stacks`, named as `stacks()` names them."""
        for name, value in self.stacks().items():
            value.copy_(stacks[name])


class _Group:
    """Views of the agents that are computed together."""

    def __init__(self, learner: ControlLearner, agents: slice) -> None:
        self.agents, self.config = agents, learner.config
        self.is_single = agents.stop - agents.start == 1
        self.actor, self.critic = learner.actor.rows(agents), learner.critic.rows(agents)
        self.target_actor, self.target_critic = learner.target_actor.rows(agents), learner.target_critic.rows(agents)
        self.step_actor = _stepper(learner.actor_adam, learner.target_actor, agents, learner.config)
        self.step_critic = _stepper(learner.critic_adam, learner.target_critic, agents, learner.config)

    def take(self, stack: Tensor) -> Tensor:
        """These agents' rows of (A, ...), without the first dimension if it is one agent."""
        return stack[self.agents.start] if self.is_single else stack[self.agents]

    def update(self, whole: ControlBatch) -> tuple[Tensor, Tensor, Tensor]:
        """One step of everything; (..., B) values of the batch, what they should be, and values of the policy."""
        batch = ControlBatch(self.take(whole.rows), whole.widths)
        value, target = self._update_critic(batch)
        policy_value = self._update_actor(batch)
        return value, target, policy_value

    def _update_critic(self, batch: ControlBatch) -> tuple[Tensor, Tensor]:
        next_action = self.target_actor.output(batch.next_observation).tanh_()
        next_value = self.target_critic.output(torch.cat((batch.next_observation, next_action), -1))
        target = td_target(batch.reward, batch.terminated, next_value.squeeze(-1), self.config.gamma)
        activations = self.critic.forward(batch.observation_action)
        value = activations[-1].squeeze(-1)
        d_value = critic_loss_gradient(value, target).unsqueeze(-1)
        self.step_critic(self.critic.parameter_gradients(activations, d_value))
        return value, target

    def _update_actor(self, batch: ControlBatch) -> Tensor:
        activations = self.actor.forward(batch.observation)
        action = activations[-1].tanh_()
        valued = self.critic.forward(torch.cat((batch.observation, action), -1))
        d_action = self.critic.input_gradient(valued, actor_loss_gradient(valued[-1]), batch.widths.observation)
        d_output = torch.ops.aten.tanh_backward(d_action, action)
        self.step_actor(self.actor.parameter_gradients(activations, d_output))
        return valued[-1].squeeze(-1)


def _stepper(adam: _Adam, target: MLP, agents: slice, config: ControlConfig) -> Callable[[list[Tensor]], None]:
    """Clip, Adam and soft update of some agents' networks of one kind, given their gradients.

    The target follows at once, while the parameters are in the cache: nothing reads it before the next update.
    """
    move = adam.rows(agents)
    online, behind = rows_of(adam.parameters, agents), rows_of(target.parameters, agents)
    is_clipped = config.max_gradient_norm < float("inf")

    def step(gradients: list[Tensor]) -> None:
        if is_clipped:
            shapes = [(agents.stop - agents.start, -1)] * len(gradients)
            holders = [SimpleNamespace(grad=g.view(shape)) for g, shape in zip(gradients, shapes, strict=True)]
            clip_gradients(cast(list[nn.Parameter], holders), [], config.max_gradient_norm)
        move(gradients)
        torch._foreach_lerp_(behind, online, config.tau)

    return step

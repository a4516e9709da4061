"""A fully convolutional dueling Q-network on a grid, one action per cell, and the symmetries of its input."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from utils.config.fuel_breaks import QNetworkConfig
from utils.memory_census import counted

SYMMETRIES = 8  # 0 to 3 counterclockwise quarter turns, then the same after mirroring west and east
_MIN_DEVIATION = 0.05  # least deviation by which an input channel is divided


@counted("agents")
class QNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - the mean of A over legal actions (Wang et al. 2016), a the number of a grid cell.

    Advantages come from residual convolutions with dilations 1, 2, 4, ..., the value from means and maxima over the
    grid. With a prior channel the advantage is a learned positive multiple of it plus a correction that starts at zero:
    an untrained network ranks actions by that channel.
    """

    input_mean: Tensor
    input_deviation: Tensor

    def __init__(self, channels: int, config: QNetworkConfig, *, prior_channel: int | None, prior_scale: float) -> None:
        super().__init__()
        width = config.width
        self.prior_channel = prior_channel
        self.register_buffer("input_mean", torch.zeros(channels, 1, 1))
        self.register_buffer("input_deviation", torch.ones(channels, 1, 1))
        self.stem = nn.Conv2d(channels + (prior_channel is not None), width, 3, padding=1)
        reaches = [2**k for k in range(config.dilations)]
        self.layers = nn.ModuleList([nn.Conv2d(width, width, 3, padding=d, dilation=d) for d in reaches])
        self.advantage = nn.Conv2d(width, 1, 1)
        self.value = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.prior_log_scale = nn.Parameter(torch.tensor(float(prior_scale)).log())
        if prior_channel is not None:
            nn.init.zeros_(self.advantage.weight)
        nn.init.zeros_(self.advantage.bias)  # type: ignore[arg-type]

    @torch.no_grad()
    def fit_inputs(self, observations: Tensor) -> None:
        """Standardise channels by the mean and deviation of (n, channels, rows, columns) observations."""
        deviation, mean = torch.std_mean(observations.transpose(0, 1).flatten(1), dim=1)
        self.input_mean.copy_(mean.view(-1, 1, 1))
        self.input_deviation.copy_(deviation.clamp(min=_MIN_DEVIATION).view(-1, 1, 1))

    def forward(self, observation: Tensor, legal: Tensor) -> Tensor:
        """Return (n, cells) values of (n, channels, rows, columns); -inf where (n, cells) `legal` is false."""
        inputs = (observation - self.input_mean) / self.input_deviation
        prior = None
        if self.prior_channel is not None:
            prior = observation[:, self.prior_channel]
            # Relative to its largest value, so that cells also differ late in an episode, when values are small.
            highest = prior.flatten(1).amax(dim=1).clamp(min=1e-6).view(-1, 1, 1)
            inputs = torch.cat([inputs, (prior / highest).unsqueeze(1)], dim=1)
        features = functional.relu(self.stem(inputs.contiguous(memory_format=torch.channels_last)))
        for layer in self.layers:
            features = features + functional.relu(layer(features))
        advantage = self.advantage(features).flatten(1)
        if prior is not None:
            advantage = advantage + self.prior_log_scale.exp() * prior.flatten(1)
        value = self.value(torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1))
        masked = advantage * legal
        mean = masked.sum(dim=1, keepdim=True) / legal.sum(dim=1, keepdim=True).clamp(min=1)
        values: Tensor = value + advantage - mean
        return values.masked_fill(~legal, -torch.inf)


class GridSymmetry:
    """The eight symmetries of maps (n, channels, side, side) and of their (n, ..., cells)."""

    def __init__(self, channels: int, side: int, *, compass: Sequence[int], east: int, north: int) -> None:
        """Take the channels that depend on the compass; a symmetry leaves the values of others as they are.

        Args:
            compass: eight channels, one per direction, north first, then clockwise; or none.
            east: channel of the east component of a vector.
            north: channel of its north component.
        """
        self._side, directions = side, np.array(compass, dtype=np.int64)
        self._channels: list[tuple[list[int], list[float]]] = []  # by symmetry: sources and signs
        for is_mirrored in (False, True):
            source, sign = np.arange(channels), np.ones(channels)
            if is_mirrored:
                source[directions], sign[east] = np.roll(directions[::-1], 1), -1
            for _ in range(4):
                self._channels.append((source.tolist(), sign.tolist()))
                # A quarter turn counterclockwise: what points north now pointed east, what points east pointed south.
                source[directions] = source[np.roll(directions, -2)]
                source[[north, east]], sign[[north, east]] = source[[east, north]], sign[[east, north]] * (1, -1)

    def maps(self, observation: Tensor, symmetry: int) -> Tensor:
        """Return the observation of the turned landscape."""
        source, sign = self._channels[symmetry]
        signed = observation[:, source] * observation.new_tensor(sign).view(1, -1, 1, 1)
        return self.cells(signed.flatten(2), symmetry).view_as(observation)

    def cells(self, values: Tensor, symmetry: int) -> Tensor:
        """Return (n, ..., cells) values of the turned landscape."""
        grid = values.unflatten(-1, (self._side, self._side))
        return torch.rot90(grid.flip(-1) if symmetry >= 4 else grid, symmetry % 4, (-2, -1)).flatten(-2)

    def cells_back(self, values: Tensor, symmetry: int) -> Tensor:
        """Undo `cells`; a mirror image undoes itself."""
        return self.cells(values, symmetry if symmetry >= 4 else -symmetry % 4)

    def action(self, actions: Tensor, symmetry: int) -> Tensor:
        """Return the (n,) numbers of the same cells in the turned landscape."""
        return self.cells_back(torch.arange(self._side**2, device=actions.device), symmetry)[actions]


def symmetric_values(network: QNetwork, symmetry: GridSymmetry, observation: Tensor, legal: Tensor) -> Tensor:
    """Return the mean of a network's (n, cells) values over the eight symmetries."""
    total = torch.zeros(legal.shape, dtype=observation.dtype, device=observation.device)
    for k in range(SYMMETRIES):
        values = network(symmetry.maps(observation, k), symmetry.cells(legal, k))
        total += symmetry.cells_back(values, k)
    return total / SYMMETRIES

"""The eight symmetries of a square grid, for maps with channels that depend on compass directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SYMMETRIES = 8  # 0 to 3 counterclockwise quarter turns, then the same after mirroring west and east


@dataclass(frozen=True)
class CompassChannels:
    """Channels that depend on compass directions; a symmetry leaves the values of others as they are."""

    directions: Sequence[int]  # eight channels, one per direction, north first, then clockwise; or none
    east: int  # east component of a vector (sine of its bearing)
    north: int  # north component (cosine)


class GridSymmetry(nn.Module):
    """Symmetries of square maps (n, channels, side, side) and of their cells."""

    source_channel: Tensor
    sign: Tensor
    source_cell: Tensor
    target_cell: Tensor

    def __init__(self, channels: int, side: int, compass: CompassChannels) -> None:
        super().__init__()
        sources, signs = zip(*(_channel_map(channels, compass, k) for k in range(SYMMETRIES)), strict=True)
        cells = torch.arange(side * side).view(side, side)
        mirrored = (cells, cells.flip(1))
        moved = torch.stack([torch.rot90(mirrored[k // 4], k % 4).reshape(-1) for k in range(SYMMETRIES)])
        self.register_buffer("source_channel", torch.tensor(sources), persistent=False)
        self.register_buffer("sign", torch.tensor(signs), persistent=False)
        self.register_buffer("source_cell", moved, persistent=False)
        self.register_buffer("target_cell", moved.argsort(dim=1), persistent=False)

    def maps(self, observation: Tensor, symmetry: int) -> Tensor:
        """Return the observation of the turned landscape."""
        if symmetry == 0:
            return observation
        signed = observation[:, self.source_channel[symmetry]] * self.sign[symmetry].view(1, -1, 1, 1)
        return signed.flatten(2)[:, :, self.source_cell[symmetry]].view_as(observation)

    def cells(self, values: Tensor, symmetry: int) -> Tensor:
        """Return (n, cells) values of the turned landscape."""
        return values[:, self.source_cell[symmetry]]

    def cells_back(self, values: Tensor, symmetry: int) -> Tensor:
        """Undo `cells`."""
        return values[:, self.target_cell[symmetry]]

    def action(self, actions: Tensor, symmetry: int) -> Tensor:
        """Return the (n,) numbers of the same cells in the turned landscape."""
        return self.target_cell[symmetry][actions]


def _channel_map(channels: int, compass: CompassChannels, symmetry: int) -> tuple[list[int], list[float]]:
    """Return the source and the factor of each channel."""
    source, sign = list(range(channels)), [1.0] * channels
    turns, is_mirrored = symmetry % 4, symmetry >= 4
    for bearing, channel in enumerate(compass.directions):
        # A vector that now points to a bearing pointed that much further clockwise before the counterclockwise turns.
        before = (bearing + 2 * turns) % 8
        source[channel] = compass.directions[(-before) % 8 if is_mirrored else before]
    for channel, east, north in ((compass.east, 1, 0), (compass.north, 0, 1)):
        for _ in range(turns):  # the turn undone: clockwise, north becomes east
            east, north = north, -east
        source[channel] = compass.east if east else compass.north
        sign[channel] = float(-east if is_mirrored else east) if east else float(north)
    return source, sign

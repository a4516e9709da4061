"""The eight symmetries of a square grid, applied to maps whose channels may point along the compass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SYMMETRIES = 8
"""Quarter turns counterclockwise 0 to 3, then the same after a mirroring of west and east."""


@dataclass(frozen=True)
class CompassChannels:
    """Channels of a map that point along the compass; a turn leaves the others' values as they are."""

    directions: Sequence[int]
    """Eight channels, one a direction: north first, then clockwise; or none."""
    east: int
    """The east component of a vector (the sine of its bearing)."""
    north: int
    """The north component (the cosine)."""


class GridSymmetry(nn.Module):
    """Turned and mirrored square maps (n, channels, cells a side, cells a side), and where each cell goes."""

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
        """Return the observation (n, channels, rows, columns) as it would be on the turned ground."""
        count, channels, rows, columns = observation.shape
        if symmetry == 0:
            return observation
        signed = observation[:, self.source_channel[symmetry]] * self.sign[symmetry].view(1, -1, 1, 1)
        return signed.flatten(2)[:, :, self.source_cell[symmetry]].view(count, channels, rows, columns)

    def cells(self, values: Tensor, symmetry: int) -> Tensor:
        """Return values by cell, (n, cells), on the turned ground."""
        return values[:, self.source_cell[symmetry]]

    def cells_back(self, values: Tensor, symmetry: int) -> Tensor:
        """Undo `cells`."""
        return values[:, self.target_cell[symmetry]]

    def action(self, actions: Tensor, symmetry: int) -> Tensor:
        """Return the numbers on the turned ground of the cells numbered `actions` (n,)."""
        return self.target_cell[symmetry][actions]


def _channel_map(channels: int, compass: CompassChannels, symmetry: int) -> tuple[list[int], list[float]]:
    """Return for each channel the one that it is copied from, and the factor."""
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

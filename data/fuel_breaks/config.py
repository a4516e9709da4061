"""Settings of how a landscape is cut."""

from __future__ import annotations

from dataclasses import dataclass

from utils.config.settings import require


@dataclass(frozen=True)
class TileConfig:
    """How a landscape is cut into tiles and how these are split."""

    tile_cells: int = 20
    """Rows and columns of a tile."""
    min_burnable_share: float = 0.75
    """A tile with a smaller share of cells that can burn is left out."""
    train_fraction: float = 0.6
    """Share of the tiles, from the north, that training may read."""
    validation_fraction: float = 0.2
    """Share of the tiles south of training, for choosing the checkpoint; the rest are for the test."""
    buffer_rows: int = 1
    """Rows of tiles between two splits that belong to neither."""

    def __post_init__(self) -> None:
        require(2 <= self.tile_cells <= 64, "2 <= tile-cells <= 64", self.tile_cells)
        require(0 < self.min_burnable_share <= 1, "0 < min-burnable-share <= 1", self.min_burnable_share)
        require(0 < self.train_fraction < 1, "0 < train-fraction < 1", self.train_fraction)
        require(0 < self.validation_fraction < 1, "0 < validation-fraction < 1", self.validation_fraction)
        total = self.train_fraction + self.validation_fraction
        require(total < 1 - 1e-9, "train-fraction + validation-fraction < 1", total)
        require(self.buffer_rows >= 0, "buffer-rows >= 0", self.buffer_rows)

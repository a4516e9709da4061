"""Settings of tiles."""

from typing import Annotated

from pydantic import Field

from utils.config.kinds import InnerShare, NonNegativeInt, PositiveShare
from utils.config.settings import checked_dataclass, require


@checked_dataclass
class TileConfig:
    """Tiles that a landscape is cut into, and their splits."""

    tile_cells: Annotated[int, Field(ge=2, le=64)] = 20
    """Rows and columns of a tile."""
    min_burnable_share: PositiveShare = 0.75
    """Smallest share of cells that can burn; tiles with less are left out."""
    train_fraction: InnerShare = 0.6
    """Share of the tiles, from the north, that training may read."""
    validation_fraction: InnerShare = 0.2
    """Share of the tiles south of training, for choosing the checkpoint; the rest are for the test."""
    buffer_rows: NonNegativeInt = 1
    """Rows of tiles between two splits that belong to neither."""

    def __post_init__(self) -> None:
        total = self.train_fraction + self.validation_fraction
        require(total < 1 - 1e-9, "train-fraction + validation-fraction < 1", total)

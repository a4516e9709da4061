"""Settings of the Q-network."""

from typing import Annotated

from pydantic import Field

from utils.config.settings import checked_dataclass


@checked_dataclass
class QNetworkConfig:
    """The fully convolutional dueling network."""

    width: Annotated[int, Field(ge=1, le=512)] = 24
    """Feature maps of each layer."""
    dilations: Annotated[int, Field(ge=0, le=5)] = 3
    """3 x 3 layers after the first, each reaching twice as far as the one before: 1, 2, 4, ... cells."""
    downstream_prior: bool = True
    """Start from advantages that are a learned multiple of the downstream value, which the network then corrects."""

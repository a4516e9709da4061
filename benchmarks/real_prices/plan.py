"""The plan of the study on real prices: everything that is measured, read from a file that is fixed beforehand."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from data.splits import FoldPlan
from utils.config.settings import flatten, from_dict, to_dict
from utils.config.trader import Config, profile_config
from utils.errors import ConfigError, first_line

PLAN = Path(__file__).parent / "plan.toml"
LISTED, ALL = "listed", "all"


@dataclass(frozen=True)
class Universe:
    """Stocks that may be bought, and what is trained on them."""

    stocks: str
    """`listed`: those of --investable; `all`: every column of the data."""
    variants: Mapping[str, Config]
    """Settings by name."""


@dataclass(frozen=True)
class Plan:
    """What is trained and played."""

    seeds: tuple[int, ...]
    rival_refit: int
    """Sessions after which learned rivals are fitted again, beside those that are fitted once a fold."""
    folds: FoldPlan
    universes: Mapping[str, Universe]
    config: Config
    digest: str
    """SHA-256 (hex) of the plan's contents; comments and order of tables count for nothing."""

    @classmethod
    def read(cls, path: Path = PLAN) -> Self:
        """Read a plan. Raises ConfigError for one that cannot be followed."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
            settings = flatten(to_dict(profile_config("full"))) | flatten(values.pop("settings", {}))
            settings["memory_report"] = "off"
            universes = {name: _universe(settings, **one) for name, one in values.pop("universes").items()}
            folds, seeds = FoldPlan(**values.pop("folds")), tuple(values.pop("seeds"))
            config, refit = from_dict(settings, Config), int(values.pop("rival_refit"))
            if values:
                raise ValueError(f"unknown {', '.join(values)}")
            return cls(seeds, refit, folds, universes, config, digest)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"expected a plan of the study in {path}, got: {first_line(error)}; mend it") from None


def _universe(settings: Mapping[str, Any], stocks: str, variants: Mapping[str, Any]) -> Universe:
    if stocks not in (LISTED, ALL) or not variants:
        raise ValueError(f"expected stocks to be {LISTED} or {ALL}, and variants, got {stocks!r}, {[*variants]}")
    return Universe(stocks, {name: from_dict({**settings, **flatten(one)}, Config) for name, one in variants.items()})

"""The plan of the study on real prices: everything that is measured, read from a file that is fixed beforehand."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.real_prices.forms import FORMS, PRODUCT, VARIANTS
from data.splits import FoldPlan
from training.evaluation.baselines import EQUAL
from utils.config.settings import flatten, from_dict, to_dict
from utils.config.trader import Config, profile_config
from utils.errors import ConfigError, first_line

PLAN = Path(__file__).parent / "plan.toml"
PICKERS, AT_EXPOSURE, BEST_RIVAL = "pickers", "equal weight at its exposure", "best rival"
LISTED, ALL = "listed", "all"
_DESCRIPTIVE = ("cost_bps", "volume_caps", "capitals", "delisting_losses", "close_percent")
"""Keys of the frozen plans that no comparison uses: orders given again under other rules, folds that came close."""


@dataclass(frozen=True)
class Universe:
    """Stocks that may be bought, and what is trained on them."""

    name: str
    stocks: str
    """`listed`: those of --investable; `all`: every column of the data."""
    variants: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of main.py, over those of the plan, by dotted name."""


@dataclass(frozen=True)
class Comparison:
    """A difference that was named before the test days were seen."""

    universe: str
    policy: str
    against: str


@dataclass(frozen=True)
class Plan:
    """What is trained, played and compared."""

    seeds: tuple[int, ...]
    forms: tuple[str, ...]
    """Ways to deploy a trained population."""
    pickers: int
    rival_refit: int
    """Sessions after which learned rivals are fitted again, beside those that are fitted once a fold."""
    folds: FoldPlan
    universes: tuple[Universe, ...]
    comparisons: tuple[Comparison, ...]
    """Confirmatory ones, the main test first."""
    config: Config
    digest: str
    """SHA-256 (hex) of the plan's contents; comments and order of tables count for nothing."""

    def config_of(self, universe: Universe) -> Config:
        """Return the settings of a universe."""
        return from_dict(flatten(to_dict(self.config)) | dict(universe.settings), Config)

    def policies(self, universe: Universe) -> Iterator[tuple[str, str, str]]:
        """Yield name, variant and form of each trained policy of a universe; the product is named by its form alone."""
        for variant in universe.variants:
            for form in self.forms:
                yield form if variant == PRODUCT else f"{form}, {variant}", variant, form


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan. Raises ConfigError for one that cannot be followed."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        plan = _plan(values, digest)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"expected a plan of the study in {path}, got: {first_line(error)}; mend it") from None
    for name, known, used in (
        ("form", FORMS, plan.forms),
        ("variant", VARIANTS, [variant for universe in plan.universes for variant in universe.variants]),
        ("kind of stocks", (LISTED, ALL), [universe.stocks for universe in plan.universes]),
        ("universe", [universe.name for universe in plan.universes], [entry.universe for entry in plan.comparisons]),
    ):
        unknown = [word for word in used if word not in known]
        if unknown or not used:
            raise ConfigError(f"expected a {name} of {', '.join(known)} in {path}, got {', '.join(unknown) or 'none'}")
    for universe in plan.universes:
        trained = [name for name, *_ in plan.policies(universe)]
        others = [*trained, PICKERS, AT_EXPOSURE, BEST_RIVAL, EQUAL]
        for entry in plan.comparisons:
            for word, among in ((entry.policy, trained), (entry.against, others)):
                if entry.universe == universe.name and word not in among:
                    raise ConfigError(f"expected one of {'; '.join(among)} to be compared in {path}, got {word!r}")
    return plan


def _plan(values: dict[str, Any], digest: str) -> Plan:
    settings = flatten(to_dict(profile_config("full"))) | flatten(values.pop("settings", {}))
    universes = [
        Universe(**{**entry, "variants": tuple(entry["variants"]), "settings": flatten(entry.get("settings", {}))})
        for entry in values.pop("universes")
    ]
    others: dict[str, Any] = {
        "folds": FoldPlan(**values.pop("folds")),
        "universes": tuple(universes),
        "comparisons": tuple(Comparison(**entry) for entry in values.pop("comparisons")),
        "config": from_dict(settings | {"memory_report": "off"}, Config),
    }
    counted = {name: value for name, value in values.items() if name not in _DESCRIPTIVE}
    lists: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in counted.items()}
    plan = Plan(digest=digest, **others, **lists)
    for universe in universes:
        plan.config_of(universe)
    return plan

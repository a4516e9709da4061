"""Arguments of commands that train many runs, and the default settings of a run."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from utils.config import kinds
from utils.config.settings import checked_dataclass
from utils.config.trader import Config, default_settings


@checked_dataclass
class StudyArguments:
    """Arguments of commands that train many runs."""

    settings: Config = field(default_factory=Config)
    config: kinds.SettingsFile = None
    jobs: Annotated[int | None, Field(ge=1), kinds.Mark.FREE] = None
    """Parallel jobs, each a process with one thread; default: 1, on a cluster one per processor or GPU."""
    cluster: Annotated[str | None, kinds.Mark.FREE] = None
    """Ray cluster for the jobs: its address, `auto` for a running one here or else a new one, `local` for a new one on
    this machine."""


def run_defaults(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `default_settings`; ConfigError for an unknown kind of market."""
    if "synthetic.kind" in stated:
        from data.synthetic.kinds import planted_kind  # takes long where no kind is needed

        planted_kind(stated["synthetic.kind"])
    return default_settings(stated)

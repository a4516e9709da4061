"""The table of commands: `main.py` knows these."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from training.commands import arguments
from training.fuel_breaks import config as fuel_breaks
from utils.config.cli import Command
from utils.config.settings import LATEST
from utils.config.trader import PROFILES, default_settings
from utils.runs.run_lock import require_free
from utils.runs.run_log import RunLog, latest_run


def require_runs(parsed: Any) -> None:
    """Raise ConfigError if there is no run of one of the names, or none at all; DataError for a file of no bars."""
    for name in getattr(parsed, "names", (parsed.run,)):
        RunLog.open(parsed.runs_dir, name)
    require_bars(getattr(parsed, "data", None))


def require_bars(data: Path | None) -> None:
    """Raise DataError for a file that holds no daily bars."""
    if data is not None:
        from data.bars import COLUMNS, LongBars  # imported late: other commands need no pandas

        LongBars.of_file(data, COLUMNS)


def require_startable(parsed: Any) -> None:
    """Refuse what can be refused before torch is imported, which takes seconds: a run that is not there or in use, data
    that are no bars. Raises ConfigError, DataError. Where a cloud may hold the run, it is looked for later."""
    settings = parsed.settings
    name, runs_dir = settings.resume, settings.runs_dir
    if name is None:
        require_bars(getattr(settings, "data", None))
    elif not (os.environ.keys() & {"CLOUD_PROVIDER", "CLOUD_BUCKET"}):
        run = RunLog.open(runs_dir, latest_run(runs_dir, to_resume=True) if name == LATEST else name)
        require_free(run.path)


def require_startable_study(parsed: Any) -> None:
    """As `require_startable`, for a study; it looks for one to resume itself."""
    settings = parsed.settings
    if settings.resume is None:
        require_startable(parsed)
    elif settings.resume != LATEST:
        require_free(settings.runs_dir / settings.resume)


EXAMPLES = {
    "python main.py": "Train on data/stock_data.parquet if it exists, else on the built-in market.",
    "python main.py --data bars.parquet --run first": "Train on prices of your own; `prepare` makes the file.",
    "python main.py --resume first": "Continue this run after a stop.",
}
ENVIRONMENT = {
    "CLOUD_PROVIDER": "Where runs are kept besides the disk: `gcs` (Google Cloud Storage) or `local` (a folder).",
    "CLOUD_BUCKET": "Name of the bucket, or absolute path of the folder.",
    "CLOUD_PROJECT": "Google Cloud project of the bucket, if the credentials name none.",
    "GOOGLE_APPLICATION_CREDENTIALS": "Path of the key file for the bucket.",
    "GOOGLE_APPLICATION_CREDENTIALS_JSON": "Contents of that file, where a machine gets secrets as variables.",
    "BOX_VOLUME": "Volume of a rented machine, which its image sets: runs and data lie below it.",
    "SERVE_TOKEN": "Token of `serve`, which else makes a new one each time.",
    "CUDA_VISIBLE_DEVICES": "GPUs that may be used; empty: none.",
    "NO_COLOR": "If set, messages on a terminal have no colour.",
}


def run_defaults(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `default_settings`, with the trading rules of a stated kind of market; ConfigError for an unknown one."""
    if "synthetic.kind" not in stated:
        return default_settings(stated)
    from data.synthetic.planted import planted_kind  # takes long where no kind is needed

    return {**default_settings(stated), **planted_kind(stated["synthetic.kind"]).trading_rules}


def help_lists() -> Mapping[str, Mapping[str, str]]:
    """Return the lists that the help shows after the commands."""
    from data.synthetic.planted import PLANTED_KINDS

    kinds = {}
    for name, kind in PLANTED_KINDS.items():
        rules = [f"--{rule.replace('_', '-')} {value:g}" for rule, value in kind.trading_rules.items()]
        kinds[name] = kind.structure + "".join(f" (brings {rule})" for rule in rules)
    return {
        "examples:": EXAMPLES,
        "environment variables:": ENVIRONMENT,
        "what each --synthetic.kind plants in the built-in market:": kinds,
    }


of_runs = partial(Command, adapt=run_defaults, profiles=PROFILES)
COMMANDS = {
    "train": of_runs(
        arguments.TrainArguments,
        "training.commands.train:run_train",
        require_startable,
        lists=help_lists,
    ),
    "prepare": Command(arguments.PrepareArguments, "training.commands.prepare:run_prepare"),
    "evaluate": Command(arguments.EvaluateArguments, "training.commands.evaluate:run_evaluation", require_runs),
    "signals": Command(arguments.SignalsArguments, "training.commands.signals:run_signals", require_runs),
    "audit": Command(arguments.AuditArguments, "training.commands.audit:run_audit", require_runs),
    "report": Command(arguments.ReportArguments, "training.commands.report:run_report", require_runs),
    "serve": Command(arguments.ServeArguments, "training.commands.serve:run_serve"),
    "walk-forward": of_runs(
        arguments.WalkForwardArguments, "training.commands.walk_forward:run_walk_forward", require_startable_study
    ),
    "sweep": of_runs(arguments.SweepArguments, "training.commands.sweep:run_sweep", require_startable_study),
    **{
        f"paper {name}": Command(kind, f"training.commands.paper:run_{name}")
        for name, kind in {
            "open": arguments.PaperOpenArguments,
            "step": arguments.PaperStepArguments,
            "status": arguments.PaperArguments,
            "report": arguments.PaperReportArguments,
            "stop": arguments.PaperStopArguments,
            "go": arguments.PaperGoArguments,
            "replay": arguments.PaperReplayArguments,
        }.items()
    },
    "fuel-breaks train": Command(
        fuel_breaks.FuelBreakTrainArguments, "training.fuel_breaks.train_command:run_train", require_startable
    ),
    "fuel-breaks evaluate": Command(
        fuel_breaks.FuelBreakEvaluateArguments, "training.fuel_breaks.evaluate_command:run_evaluation"
    ),
    "fuel-breaks show": Command(fuel_breaks.FuelBreakShowArguments, "training.fuel_breaks.show_command:run_show"),
}
"""A command by its name, a word or two; the function is imported only when the command runs."""

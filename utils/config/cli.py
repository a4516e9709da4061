"""The command line: flags are made from the config dataclasses, values are read and help is written by tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import tomllib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from training.fuel_breaks.arguments import (
    FuelBreakEvaluateArguments,
    FuelBreakShowArguments,
    FuelBreakTrainArguments,
)
from utils.config.settings import (
    LATEST,
    checked,
    describe,
    flatten,
    from_dict,
    nearest,
    nest,
    require,
    setting_types,
    to_dict,
)
from utils.config.trader import DEVICES, FLAT, Config, Profile, profile_config
from utils.errors import ConfigError

DEFAULT_DATA = Path("data/stock_data.parquet")
"""What --resume without a name means: the newest run."""
IF_BARE = {"resume": LATEST}
"""Settings whose flag may come without a value, and what it then means."""


@dataclass(frozen=True)
class TrainArguments:
    """Train a population of trading agents by evolutionary reinforcement learning.

    `python main.py` trains. Other commands, each with a --help of its own: `prepare` turns CSV files into the data
    file, `evaluate` judges a finished run, `signals` gives tomorrow's orders, `walk-forward` trains and tests in turn.
    """

    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    config: Path | None = None
    """TOML file of settings, tables named as the concerns (for example [env] cost_bps = 5.0); flags override it."""


@dataclass(frozen=True)
class PrepareArguments:
    """Turn CSV files of daily bars into one validated parquet file."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Folder with one CSV file a ticker, or one long CSV file with a ticker column."""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[TARGET]")] = DEFAULT_DATA
    """Parquet file to write."""


@dataclass(frozen=True)
class EvaluateArguments:
    """Judge the champion of a run, and each elite, against baselines; writes a report into the run's folder."""

    run: str | None = None
    """Name of the run; default: the newest one."""
    split: Literal["validation", "holdout"] = "validation"
    """Days on which it is judged; each look at the holdout is counted."""
    data: Path | None = None
    """Parquet file to read instead of the one that the run was trained on: the same past, perhaps with more days."""
    runs_dir: Path = Path("runs")
    random_pickers: int = 1000
    """Random pickers that the champion is compared with."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int = 0
    """CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""

    def __post_init__(self) -> None:
        require(self.random_pickers >= 1, "random-pickers >= 1", self.random_pickers)
        _require_machine(self.device, self.threads)


@dataclass(frozen=True)
class SignalsArguments:
    """Tomorrow's orders by the champion of a run, and what each looks at most."""

    run: str | None = None
    """Name of the run; default: the newest one."""
    date: str | None = None
    """Session whose close decides, as 2014-11-10; default: the last one of the data."""
    data: Path | None = None
    """Parquet file to read instead of the one that the run was trained on: the same past, perhaps with more days."""
    positions: Path | None = None
    """CSV file of what is held now: ticker,entry_date,entry_price,target_percent,shares; default: nothing."""
    capital: float | None = None
    """Money that the account began with, to which sizes refer; default: the run's initial capital."""
    cash: float | None = None
    """Money not invested; default: the capital less what the held positions cost."""
    csv: Path | None = None
    """Write the orders to this CSV file."""
    json: Path | None = None
    """Write everything to this JSON file."""
    runs_dir: Path = Path("runs")
    device: str = "cpu"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int = 0
    """CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""

    def __post_init__(self) -> None:
        require(self.capital is None or self.capital > 0, "capital > 0", self.capital)
        require(self.cash is None or self.cash >= 0, "cash >= 0", self.cash)
        _require_machine(self.device, self.threads)


@dataclass(frozen=True)
class WalkForwardArguments:
    """Train, validate and test again and again, each time later: one equity curve of days that no champion has seen.

    Each fold is a training run in runs/NAME/fold-K, whose test days follow its validation days; --run, --resume and all
    settings of a training run apply.
    """

    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    config: Path | None = None
    """TOML file of settings, tables named as the concerns (for example [env] cost_bps = 5.0); flags override it."""
    folds: int = 4
    """Times that a population is trained; the test days of the last one end with the data."""
    test_windows: int = 2
    """Episodes on a fold's test days, each beginning where the one before it ended."""
    validation_days: int = 290
    """Days before a fold's test days (less a purge) on which its champion is chosen."""
    train_days: int = 0
    """Days before a fold's validation days (less a purge) on which it trains; 0 takes all of them."""

    def __post_init__(self) -> None:
        require(self.folds >= 1, "folds >= 1", self.folds)
        require(self.test_windows >= 1, "test-windows >= 1", self.test_windows)
        require(self.validation_days >= 1, "validation-days >= 1", self.validation_days)
        require(self.train_days >= 0, "train-days >= 0", self.train_days)


def _require_machine(device: str, threads: int) -> None:
    require(re.fullmatch(DEVICES, device) is not None, "device to be auto, cpu, cuda or cuda:N", device)
    require(threads >= 0, "threads >= 0", threads)


Arguments = (
    TrainArguments
    | PrepareArguments
    | EvaluateArguments
    | SignalsArguments
    | WalkForwardArguments
    | FuelBreakTrainArguments
    | FuelBreakEvaluateArguments
    | FuelBreakShowArguments
)
COMMANDS: dict[str, type[Any]] = {
    "train": TrainArguments,
    "prepare": PrepareArguments,
    "evaluate": EvaluateArguments,
    "signals": SignalsArguments,
    "walk-forward": WalkForwardArguments,
    "fuel-breaks train": FuelBreakTrainArguments,
    "fuel-breaks evaluate": FuelBreakEvaluateArguments,
    "fuel-breaks show": FuelBreakShowArguments,
}
"""A command is a word or two and a dataclass of its arguments; a field `settings` brings every setting's flag."""


@dataclass(frozen=True)
class Command:
    """What was asked for."""

    name: str
    arguments: Arguments
    config: Config
    """A trader's settings: the profile's, overridden by the TOML file, overridden by flags."""
    explicit: frozenset[str]
    """Dotted names of the settings that flags or the TOML file named, for example `env.cost_bps`."""


@dataclass(frozen=True)
class Flag:
    """What a flag sets: a setting by its dotted name; `switch` is the value of a flag that takes none."""

    setting: str
    kind: Any
    switch: bool | None = None


def parse_command(argv: Sequence[str], *, cuda_available: bool, default_data: Path = DEFAULT_DATA) -> Command:
    """The command in `argv` (without the program's name).

    Settings come from the profile, then the TOML file, then the flags, and are validated together.
    Raises ConfigError with a one-line message for what cannot be run, SystemExit(0) after printing help.
    """
    name, words = _split_command(argv)
    kind = COMMANDS[name]
    settings = setting_types(kind).get("settings")
    if {"-h", "--help"} & set(words):
        profile = _default_profile(cuda_available or default_data.exists())
        _print_help(name, kind, {"settings": profile_config(profile)} if settings is Config else {})
    given = _read_words(words, kind)
    if settings is None:
        arguments = from_dict(given, kind)
        _require_cuda(getattr(arguments, "device", "cpu"), cuda_available)
        for flag in ("data", "positions"):
            _require_file(getattr(arguments, flag, None), f"--{flag}", "")
        return Command(name, arguments, profile_config("quick"), frozenset())
    own = {key: given.pop(key) for key in setting_types(kind) if key in given}
    stated = {**_read_toml(own.get("config"), settings), **given}
    if settings is Config:
        config = _resolve(stated, cuda_available, default_data)
        return Command(name, kind(**own, settings=config), config, frozenset(stated))
    other = from_dict(nest({**flatten(to_dict(settings())), **stated}), settings)
    _refuse_run_and_resume(other, stated)
    _require_cuda(other.device, cuda_available)
    return Command(name, kind(**own, settings=other), profile_config("quick"), frozenset(stated))


def _split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    if not argv or argv[0].startswith("-"):
        return "train", list(argv)
    group = [name for name in COMMANDS if name.startswith(f"{argv[0]} ")]
    if group and (len(argv) == 1 or argv[1].startswith("-")):
        return f"{argv[0]} train", list(argv[1:])
    count = 2 if group else 1
    name = " ".join(argv[:count])
    if name not in COMMANDS:
        known = nearest(name, group or COMMANDS)
        raise ConfigError(f"expected a command ({', '.join(COMMANDS)}), got {name!r}; the nearest is {known!r}")
    return name, list(argv[count:])


def _default_profile(has_means: bool) -> Profile:
    return "full" if has_means else "quick"


def _print_help(name: str, kind: type[Any], defaults: Mapping[str, Any]) -> None:
    """Print the help of a command and exit with status 0."""
    program = "main.py" if name == "train" else f"main.py {name}"
    tyro.cli(kind, prog=program, args=["--help"], default=kind(**defaults) if defaults else tyro.MISSING_NONPROP)


def flags_of(kind: type, concerns: tuple[str, ...] = ()) -> dict[str, Flag]:
    """Every flag of a dataclass of arguments, by its spelling."""
    flags: dict[str, Flag] = {}
    all_marks = _marks(kind)
    for name, bare in setting_types(kind).items():
        marks = all_marks[name]
        if dataclasses.is_dataclass(bare):
            inner = concerns if name == "settings" else (*concerns, name)
            flags |= flags_of(bare, inner)  # type: ignore[arg-type]
        elif tyro.conf.Positional not in marks:
            flags |= _spellings(name, bare, concerns)
            flags |= _spellings(name, bare, concerns, flat=True) if FLAT in marks else {}
    return flags


def _marks(kind: type) -> dict[str, tuple[Any, ...]]:
    """What `Annotated` adds to each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: getattr(hints[name], "__metadata__", ()) for name in setting_types(kind)}


def _spellings(name: str, kind: Any, concerns: tuple[str, ...], flat: bool = False) -> dict[str, Flag]:
    setting = ".".join((*concerns, name))
    prefix = "--" + "".join(f"{concern}." for concern in concerns if not flat).replace("_", "-")
    word = name.replace("_", "-")
    if kind is bool:
        return {prefix + word: Flag(setting, kind, True), f"{prefix}no-{word}": Flag(setting, kind, False)}
    return {prefix + word: Flag(setting, kind)}


def _read_words(words: Sequence[str], kind: type) -> dict[str, Any]:
    """Values that the words of a command give, by dotted name; a flag given twice counts as last given."""
    flags = flags_of(kind)
    positions = deque(name for name, marks in _marks(kind).items() if tyro.conf.Positional in marks)
    given: dict[str, Any] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        if word.startswith("-"):
            flag, spelled = _find_flag(word, flags)
            given[flag.setting] = _read_value(flag, spelled, word, left)
        elif positions:
            name = positions.popleft()
            given[name] = _parse(word, setting_types(kind)[name], name.upper())
        else:
            raise ConfigError(f"expected a flag (such as --seed 1), got {word!r}; see --help")
    missing = [item for item in positions if _must_be_given(kind, item)]
    if missing:
        raise ConfigError(f"expected {missing[0].upper()}, got nothing; see --help")
    return given


def _must_be_given(kind: type, name: str) -> bool:
    return any(item.name == name and item.default is dataclasses.MISSING for item in dataclasses.fields(kind))


def _find_flag(word: str, flags: Mapping[str, Flag]) -> tuple[Flag, str]:
    spelled = word.partition("=")[0].replace("_", "-")
    if spelled not in flags:
        known = nearest(spelled, [*flags, "--help"])
        raise ConfigError(f"expected a known flag, got {spelled!r}; the nearest is {known!r}")
    return flags[spelled], spelled


def _read_value(flag: Flag, spelled: str, word: str, left: deque[str]) -> Any:
    """The value of a flag, from after its `=` or from the next word, which is then taken off `left`."""
    has_equals, inline = word.partition("=")[1:]
    if flag.switch is not None:
        if has_equals:
            raise ConfigError(f"expected {spelled} without a value, got {word!r}")
        return flag.switch
    if has_equals:
        return _parse(inline, flag.kind, spelled)
    # A single dash may begin a negative number; a run's name is not taken for one.
    optional = flag.setting in IF_BARE
    if left and not left[0].startswith("-" if optional else "--"):
        return _parse(left.popleft(), flag.kind, spelled)
    if optional:
        return IF_BARE[flag.setting]
    raise ConfigError(f"expected {describe(flag.kind)} after {spelled}, got {left[0] if left else 'nothing'}")


def _parse(raw: str, kind: Any, spelled: str) -> Any:
    value: Any = raw
    # Where tyro cannot read the value it prints a box and exits; `checked` then says in one line what was expected.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        value = tyro.cli(kind, args=[raw], add_help=False)
    return checked(value, kind, spelled)


def _read_toml(path: Path | None, settings: type[Any]) -> dict[str, Any]:
    """Settings of a TOML file by dotted name; hyphens in names count as underscores."""
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"expected a readable TOML file for --config, got {str(path)!r} ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"expected TOML in {path}, got: {error}") from None
    stated = {name.replace("-", "_"): value for name, value in flatten(table).items()}
    known = flatten(to_dict(settings()))
    for name in stated:
        if name not in known:
            raise ConfigError(
                f"expected a known setting in {path}, got {name!r}; the nearest is {nearest(name, known)!r}"
            )
    return stated


def _resolve(stated: Mapping[str, Any], cuda_available: bool, default_data: Path) -> Config:
    has_data = stated.get("data") is not None or default_data.exists()
    profile = checked(stated.get("profile", _default_profile(cuda_available or has_data)), Profile, "--profile")
    defaults = flatten(to_dict(profile_config(profile)))
    config = from_dict(nest({**defaults, **stated}), Config)
    _refuse_run_and_resume(config, stated)
    _require_cuda(config.device, cuda_available)
    _require_file(config.data, "--data", "; prepare makes one from CSV files")
    _require_file(config.investable, "--investable", "")
    if config.data is None and default_data.exists():
        return dataclasses.replace(config, data=default_data)
    return config


def _refuse_run_and_resume(config: Any, stated: Mapping[str, Any]) -> None:
    if {"run", "resume"} <= stated.keys():
        raise ConfigError(f"expected --run or --resume, got both ({config.run!r}, {config.resume!r})")


def _require_cuda(device: str, cuda_available: bool) -> None:
    if device.startswith("cuda") and not cuda_available:
        raise ConfigError(f"expected --device cpu or auto on a machine without CUDA, got {device!r}")


def _require_file(path: Path | None, flag: str, advice: str) -> None:
    if path is not None and not path.is_file():
        raise ConfigError(f"expected an existing file for {flag}, got {str(path)!r}{advice}")

"""Settings of any config dataclass by dotted name: typed, checked, saved and resumed."""

import ast
import dataclasses
import hashlib
import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from utils import checkout
from utils.config import kinds
from utils.config.kinds import Mark
from utils.errors import ConfigError

Built = TypeVar("Built")
OF_ITS_FOLDER = ("run", "resume", "runs_dir", "began_in")
"""Names in a run's settings that say where it is, which another run does not take over."""
_HOLDS = "what is held is a portfolio of target weights, the rest is cash"
_EARNS = "a reward is the change of equity, net of costs"
REMOVED: Mapping[str, str] = {
    **dict.fromkeys(("env.stake_percent", "env.max_new_positions_per_day", "env.exposure"), _HOLDS),
    **dict.fromkeys(("env.exits", "env.max_holding_days", "env.stop_percent"), _HOLDS),
    **dict.fromkeys(("env.inaction_penalty", "env.loss_multiplier", "env.zero_trades_penalty"), _EARNS),
    "learning.gamma": "the horizon of the discount is a gene",
    "learning.risk_aversion": "the price of risk is a gene",
    "evaluation.basket": "--benchmark-weights says what the benchmark holds",
    **dict.fromkeys(("learning.n_steps", "learning.discount"), "the network of fuel breaks learns whole returns"),
}
"""What took the place of settings that shaped the results of earlier versions."""
LAST_WITH = {**dict.fromkeys(REMOVED, "0.12.0"), "learning.n_steps": "0.15.0", "learning.discount": "0.15.0"}
"""The last versions that read them."""
LATEST = "latest"
"""Value of `resume` that stands for the newest run."""
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
"""Comparisons of a number with its limits, as types name them."""
_WORDS: Mapping[Any, str] = {int: "INT", float: "NUMBER", bool: "true|false", Path: "PATH"}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked_dataclass(kind: type[Built]) -> type[Built]:
    """Make a frozen dataclass that checks types and limits when built: pydantic.ValidationError for a wrong value."""
    if kind.__doc__ is None:  # python -OO strips what the help shows, but neither source nor docstrings of fields
        kind.__doc__ = ast.get_docstring(ast.parse(inspect.getsource(kind)).body[0])  # type: ignore[arg-type]
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", use_attribute_docstrings=True)
    built: Any = dataclass(frozen=True, config=config)(kind)
    fields = built.__pydantic_fields__
    for base in kind.__mro__[1:-1]:  # pydantic reads the docstrings of inherited fields no more
        for name, field in base.__pydantic_fields__.items():  # type: ignore[attr-defined]
            fields[name].description = fields[name].description or field.description
    return built  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of a config dataclass, or argument of a command."""

    path: tuple[str, ...]
    """Names of the fields that lead to it."""
    owner: type
    field: FieldInfo
    name: str
    """Its dotted name, in which the field `settings` of a command's arguments is left out."""
    kind: Any
    """Its type, without None and annotations."""
    word: str
    """The word for its value, as in INT and quick|full."""
    expected: str
    """The word with the limits of a number, as in `INT >= 1` and `NUMBER > 0 and <= 1`."""
    flag: str
    """Its flag, which for what is on by default turns it off; empty for a positional argument."""

    @classmethod
    def of(cls, path: tuple[str, ...], owner: type, field: FieldInfo) -> "Setting":
        """Return the setting in a field."""
        kind, name = field.annotation, ".".join(path).removeprefix("settings.")
        if isinstance(kind, UnionType):
            kind = next(one for one in get_args(kind) if one is not NoneType)
        word = "|".join(get_args(kind)) if get_origin(kind) is Literal else _WORDS.get(kind, "NAME")
        limits = [f"{_SIGNS[key]} {getattr(one, key)}" for one in field.metadata for key in _SIGNS if hasattr(one, key)]
        # A name that Python keeps for itself, as `from`, has an underscore at its end.
        concern, dot, last = name.rstrip("_").replace("_", "-").rpartition(".")
        prefix = "" if Mark.SHORT in field.metadata else concern + dot
        no = "no-" if field.default is True else ""
        flag = "" if Mark.POSITIONAL in field.metadata else f"--{prefix}{no}{last}"
        return cls(path, owner, field, name, kind, word, f"{word} {' and '.join(limits)}".rstrip(), flag)

    @property
    def help(self) -> str:
        """The docstring below it, or else the help of its type."""
        return " ".join(str(self.field.description).split())

    def words(self, value: Any) -> list[str]:
        """Return the words of a command line that give it a value; none for None."""
        if self.kind is bool:
            return [self.flag] if value != self.field.default else []
        values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        return [*filter(None, [self.flag]), *map(str, values)] if values else []


@checked_dataclass
class RunSettings:
    """Settings common to all kinds of runs."""

    seed: Annotated[int, Field(ge=0, lt=2**63), Mark.MAIN] = 0
    """Seed of all random numbers."""
    device: kinds.Device = "auto"
    run: Annotated[kinds.FolderName, Mark.FREE, Mark.MAIN] = None
    """Name of the run's folder; default: a new one by date and time."""
    resume: Annotated[kinds.FolderName, Mark.NEWEST_IF_BARE, Mark.FREE, Mark.MAIN] = None
    """Continue the named run, or the newest one if no name is given."""
    runs_dir: kinds.RunsFolder = kinds.RUNS
    keep_checkpoints: Annotated[kinds.PositiveInt, Mark.FREE] = 3
    """Newest checkpoints kept on disk."""
    memory_limit_mb: Annotated[kinds.NonNegativeFloat, Mark.FREE] = 0.0
    """Resident memory (MiB) at which the run stops itself; 0: 90% of what machine and cgroup allow."""
    threads: kinds.Threads = 1
    log_to: Annotated[Literal["none", "wandb", "mlflow"], Mark.FREE] = "none"
    """Client that is told settings, metrics, page and champion too (requirements-track.txt)."""
    verbose: Annotated[bool, Mark.FREE] = False
    """Show every message of the run's log on the console."""


def settings_of(kind: Any, path: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return every setting of a config dataclass, at a path, by dotted name, those of nested dataclasses included."""
    settings: dict[str, Setting] = {}
    for name, field in kind.__pydantic_fields__.items():
        if dataclasses.is_dataclass(field.annotation):
            settings |= settings_of(field.annotation, (*path, name))
        else:
            setting = Setting.of((*path, name), kind, field)
            settings[setting.name] = setting
    return settings


def require(holds: object, rule: str, value: object) -> None:
    """Raise ConfigError unless the rule holds."""
    if not holds:
        raise ConfigError(f"expected {rule}, got {value!r}")


def to_dict(settings: Any) -> dict[str, Any]:
    """Return a config dataclass as nested dicts of JSON values."""
    values: dict[str, Any] = to_jsonable_python(settings)
    return values


def named_values(settings: Any) -> dict[str, Any]:
    """Return the JSON values of all settings of a config dataclass by dotted name."""
    return flatten(to_dict(settings))


def from_dict(values: Mapping[str, Any], kind: type[Built]) -> Built:
    """Return the config dataclass that nested dicts or dotted names describe; missing settings take their defaults.

    Raises:
        ConfigError: an unknown name, a value of another type or one that breaks a rule.
    """
    require(isinstance(values, Mapping), "a table of settings", values)
    flat = flatten(values)
    known, nested = settings_of(kind), dict[str, Any]()
    for name, value in flat.items():
        if name not in known:
            require_not_removed(name)
            raise ConfigError(f"expected a known setting, got {name!r}{hint(name, known, '; see --help')}")
        *concerns, last = known[name].path
        table = nested
        for concern in concerns:
            table = table.setdefault(concern, {})
        table[last] = value
    try:
        # Only JSON has strict types and still allows paths as strings.
        return TypeAdapter(kind).validate_json(json.dumps(nested, default=str))
    except ValidationError as error:
        raise _refusal(error, known) from None


def require_not_removed(name: str) -> None:
    """Raise ConfigError, with what took its place, for the dotted name or the flag of a removed setting."""
    dotted = name.removeprefix("--").replace("-", "_")
    if dotted in REMOVED:
        flag = f"--{dotted.replace('_', '-')}"
        raise ConfigError(f"expected no {flag}, which is gone: {REMOVED[dotted]}; leave it out")


def from_saved(values: Mapping[str, Any], kind: type[Built]) -> Built:
    """Return the config dataclass of settings that were saved, as `from_dict`; a version of before is named."""
    require(isinstance(values, Mapping), "a table of settings", values)
    known = settings_of(kind)
    if gone := next((name for name in flatten(values) if name not in known and name in REMOVED), None):
        raise ConfigError(f"settings of an earlier version ({gone}), which {checkout(LAST_WITH[gone])} reads")
    return from_dict(values, kind)


def _refusal(error: ValidationError, known: Mapping[str, Setting]) -> ConfigError:
    """Return the first mistake in one line."""
    first = error.errors(include_url=False)[0]
    # The place of an item of a tuple ends with its index.
    setting = next((one for one in known.values() if one.path == first["loc"][: len(one.path)]), None)
    if setting is None:
        return ConfigError("expected names and paths in UTF-8, got other bytes")
    expected = first["msg"].removeprefix("Value error, ") if first["type"] == "value_error" else setting.expected
    value = "nothing" if first["type"] == "missing" else repr(first["input"])
    near = hint(str(first["input"]), setting.word.split("|"))
    return ConfigError(f"{setting.flag or setting.name.upper()}: expected {expected}, got {value}{near}")


def with_settings(settings: Built, values: Mapping[str, Any]) -> Built:
    """Return a config dataclass with some settings changed, otherwise as `from_dict`."""
    return from_dict(named_values(settings) | flatten(values), type(settings))


def changed_values(before: Any, now: Any) -> dict[str, Any]:
    """Return, by dotted name, the settings of a config dataclass that differ from those before."""
    old = named_values(before)
    return {name: value for name, value in named_values(now).items() if value != old[name]}


def changed_flags(before: Any, now: Any) -> list[str]:
    """Return the flags of the same, with their values."""
    known = settings_of(type(now))
    return [word for name, value in changed_values(before, now).items() for word in known[name].words(value)]


def settings_hash(settings: Any) -> str:
    """Return the SHA-256 (hex) of all settings that shape results; a run continues only under an equal hash.

    Of files only the names count: a run can move to a machine with other folders.
    """
    values = json.dumps(_shaping(settings), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(values.encode()).hexdigest()


def settings_to_resume(began: Built, now: Built, explicit: frozenset[str]) -> Built:
    """Return the settings that a run began with, updated by those of `now` that the user gave (`explicit`).

    Raises ConfigError where one that shapes results differs; a file may have moved, under the same name.
    """
    after = named_values(now)
    fixed, wanted = _shaping(began), _shaping(now)
    for name in sorted(explicit & fixed.keys()):
        if fixed[name] != wanted[name]:
            had, got = ("none" if value is None else repr(value) for value in (named_values(began)[name], after[name]))
            raise ConfigError(
                f"expected {name} = {had}, with which the run began, got {got}; "
                "leave it out, or start a new run without --resume"
            )
    return with_settings(began, {name: after[name] for name in explicit | {"resume", "runs_dir"}})


def _shaping(settings: Any) -> dict[str, Any]:
    """Return the settings that shape results; a file by its name."""
    values = named_values(settings)
    return {
        name: Path(values[name]).name if setting.kind is Path and values[name] is not None else values[name]
        for name, setting in settings_of(type(settings)).items()
        if Mark.FREE not in setting.field.metadata
    }


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file. Raises ConfigError where it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected TOML in {path}, got: {error}") from None


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file. Raises OSError or ValueError where it is none."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, where - stands for _, or in the config.json of a run, by dotted name. Raises
    ConfigError."""
    if path.suffix != ".json":
        return {name.replace("-", "_"): value for name, value in flatten(read_toml(path)).items()}
    try:
        return repeated(read_json(path))
    except (AttributeError, OSError, RecursionError, ValueError) as error:
        raise ConfigError(f"expected settings of a run in {path}, got: {error}") from None


def repeated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name as a file of settings holds them: those that are set, but not of its folder."""
    return {name: value for name, value in flatten(values).items() if value is not None and name not in OF_ITS_FOLDER}


def as_toml(values: Mapping[str, Any]) -> str:
    """Return settings by dotted name as TOML, in which numbers, strings and truth values are written as in JSON."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def flatten(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Return nested dicts as one dict from joined names to values."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}{separator}", separator))
        else:
            flat[prefix + name] = value
    return flat


def hint(name: str, valid: Iterable[str], otherwise: str = "") -> str:
    """Return words that offer the valid name most like `name`; where none is alike, `otherwise`."""
    names = list(valid)
    near = [one for one in names if one.endswith("." + name.lstrip("-"))] or get_close_matches(name, names, 1, 0.7)
    return f"; the nearest is {near[0]!r}" if near else otherwise

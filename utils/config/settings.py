"""Settings of any config dataclass by dotted name: typed, checked, saved and resumed."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import inspect
import json
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from utils.config.kinds import Mark, Rule
from utils.errors import ConfigError

Built = TypeVar("Built")
LATEST = "latest"
"""Value of `resume` that stands for the newest run."""
_ALIKE = 0.6
"""Share of matching letters from which a name may be what was meant."""


@dataclass(frozen=True)
class Setting:
    """One setting of a config dataclass."""

    kind: Any
    """Its type, without annotations."""
    owner: type
    """The dataclass that it is a field of."""
    notes: tuple[Any, ...]
    """Its annotations: rules, marks, and help in place of a docstring."""

    @property
    def rules(self) -> list[Rule]:
        """Constraints on its values."""
        return [note for note in self.notes if isinstance(note, Rule)]

    def check(self, value: Any, name: str, *, of_machine: bool = False) -> None:
        """Raise ConfigError, which calls the setting `name`, for a value that breaks a rule."""
        for rule in self.rules:
            if rule.of_machine == of_machine and value is not None and not rule.holds(value):
                raise ConfigError(f"{name}: expected {rule.words.format(metavar(self.kind))}, got {_shown(value)}")


@cache
def settings_of(kind: type) -> dict[str, Setting]:
    """Return every setting of a config dataclass by its dotted name, those of nested dataclasses included."""
    hints, found = get_type_hints(kind, include_extras=True), dict[str, Setting]()
    for name, bare in setting_types(kind).items():
        if dataclasses.is_dataclass(bare):
            found |= {f"{name}.{inner}": own for inner, own in settings_of(bare).items()}  # type: ignore[arg-type]
        else:
            found[name] = Setting(bare, kind, tuple(_notes(hints[name])))
    return found


def setting_types(kind: type) -> dict[str, Any]:
    """Return names and types of a config dataclass's fields, in order, without annotations."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def _notes(hint: Any) -> list[Any]:
    parts = get_args(hint) if get_origin(hint) in (Annotated, Union, types.UnionType) else ()
    own = [part for part in parts if isinstance(part, Rule | Mark | str)]
    return own + [note for part in parts for note in _notes(part)]


def setting_help(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass by name, or else the help of their types."""
    texts = {
        name: note for name, setting in settings_of(kind).items() for note in setting.notes if isinstance(note, str)
    }
    (source,) = ast.parse(inspect.getsource(kind)).body
    for item, after in pairwise(source.body):  # type: ignore[attr-defined]
        match item, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


def require(holds: object, rule: str, value: object) -> None:
    """Raise ConfigError unless the rule holds."""
    if not holds:
        raise ConfigError(f"expected {rule}, got {_shown(value)}")


def _shown(value: object) -> str:
    return repr(str(value) if isinstance(value, Path) else value)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked_dataclass(kind: type[Built]) -> type[Built]:
    """Make a frozen dataclass that checks the rules of its types when built, then calls its `__post_init__`."""
    own = getattr(kind, "__post_init__", None)

    def check(settings: Any) -> None:
        check_rules(settings)
        if own is not None:
            own(settings)

    kind.__post_init__ = check  # type: ignore[attr-defined]
    return dataclass(frozen=True)(kind)


def check_rules(settings: Any, *, of_machine: bool = False, prefix: str = "") -> None:
    """Raise ConfigError, naming a setting after `prefix`, if one of a config dataclass breaks a rule of its type."""
    known = settings_of(type(settings))  # type: ignore[arg-type]
    for name, value in vars(settings).items():
        if dataclasses.is_dataclass(value):
            check_rules(value, of_machine=of_machine, prefix=prefix if name == "settings" else f"{prefix}{name}.")
        else:
            known[name].check(value, prefix + name.replace("_", "-"), of_machine=of_machine)


def to_dict(settings: Any) -> dict[str, Any]:
    """Return a config dataclass as nested dicts of JSON values; paths become strings with forward slashes."""

    def plain(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value.as_posix() if isinstance(value, Path) else value for name, value in items}

    return dataclasses.asdict(settings, dict_factory=plain)


def from_dict(values: Mapping[str, Any], kind: type[Built]) -> Built:
    """Return the config dataclass that nested dicts or dotted names describe; missing settings take their defaults.

    Raises ConfigError for an unknown name, a value of another type or one that breaks a rule.
    """
    return _built(checked_settings(values, kind), kind)


def with_settings(settings: Built, values: Mapping[str, Any]) -> Built:
    """Return a config dataclass with some settings changed, otherwise as `from_dict`."""
    return _built(checked_settings(values, type(settings)), type(settings), settings)


def _built(flat: Mapping[str, Any], kind: type[Built], base: Built | None = None) -> Built:
    """Build a dataclass from typed values by dotted name, on its defaults or those of `base`."""
    values: dict[str, Any] = {}
    for name, own in setting_types(kind).items():
        if name in flat:
            values[name] = flat[name]
        elif dataclasses.is_dataclass(own):
            inner = {key.removeprefix(f"{name}."): flat[key] for key in flat if key.startswith(f"{name}.")}
            values |= {name: _built(inner, own, getattr(base, name, None))} if inner else {}  # type: ignore[arg-type]
    return kind(**values) if base is None else dataclasses.replace(base, **values)  # type: ignore[type-var]


def checked_settings(values: Mapping[str, Any], kind: type, source: str = "") -> dict[str, Any]:
    """Return settings by dotted name, typed and checked; ConfigError for an unknown name or a value that is refused."""
    known, found = settings_of(kind), {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"expected a table of settings{source}, got {values!r}")
    for name, value in flatten(values).items():
        if name not in known:
            raise ConfigError(f"expected a known setting{source}, got {name!r}{hint(name, known, '; see --help')}")
        found[name] = checked(value, known[name], name)
    return found


def checked(value: Any, setting: Setting, name: str) -> Any:
    """Return `value`, as JSON or TOML hold it, as the setting's type; ConfigError for another type or a broken rule."""
    value = typed(value, setting.kind, name)
    setting.check(value, name)
    return value


def typed(value: Any, kind: Any, name: str) -> Any:
    """Return `value`, as JSON or TOML hold it, as this type; ConfigError for one of another type."""
    for choice in alternatives(kind):
        if _fits(value, choice):
            return tuple(value) if get_origin(choice) is tuple else choice(value) if choice in (float, Path) else value
    message = f"expected {describe(kind)} for {name}, got {value!r}"
    if get_origin(kind) is Literal and isinstance(value, str):
        message += hint(value, get_args(kind))
    raise ConfigError(message)


def describe(kind: Any) -> str:
    """Return a phrase for the values of this type."""
    words = {int: "an integer", float: "a finite number", bool: "true or false", str: "a name", Path: "a path"}
    choices = [choice for choice in alternatives(kind) if choice is not type(None)]
    return " or ".join(" or ".join(get_args(choice)) or words[choice] for choice in choices)


def metavar(kind: Any) -> str:
    """Return the word for a value of this type in help and messages."""
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return {int: "INT", float: "NUMBER", Path: "PATH"}.get(alternatives(kind)[0], "NAME")


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is Path:
        return isinstance(value, str | Path)
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, get_args(kind)[0]) for item in value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


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
    after = flatten(to_dict(now))
    fixed, wanted = _shaping(began), _shaping(now)
    for name in sorted(explicit & fixed.keys()):
        if fixed[name] != wanted[name]:
            raise ConfigError(
                f"expected {name} = {flatten(to_dict(began))[name]!r}, with which the run began, got {after[name]!r}; "
                "leave it out, or start a new run without --resume"
            )
    taken = {name: value for name, value in after.items() if name in explicit | {"resume", "runs_dir"}}
    return with_settings(began, taken)


def _shaping(settings: Any) -> dict[str, Any]:
    """Return the settings that shape results in canonical form: 5 as 5.0, a file by its name."""
    values, shaping = flatten(to_dict(settings)), dict[str, Any]()
    for name, setting in settings_of(type(settings)).items():  # type: ignore[arg-type]
        if Mark.FREE not in setting.notes:
            value, kinds = values[name], alternatives(setting.kind)
            if value is not None and (Path in kinds or float in kinds):
                value = Path(value).name if Path in kinds else float(value)
            shaping[name] = value
    return shaping


def read_toml(path: Path, flag: str) -> dict[str, Any]:
    """Return the contents of a TOML file. Raises ConfigError, which names the flag, where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"expected a readable TOML file for {flag}, got {str(path)!r} ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"expected TOML in {path}, got: {error}") from None


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
    """Return words that offer the valid name most like `name`, as a whole or by its part after the last dot.

    Where none is alike, return `otherwise`.
    """

    def last(text: str) -> str:
        return text.lstrip("-").rsplit(".", 1)[-1]

    def likeness(candidate: str) -> float:
        pairs = ((name, candidate), (last(name), last(candidate)))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    nearest = max(valid, key=likeness, default="")
    return f"; the nearest is {nearest!r}" if nearest and likeness(nearest) >= _ALIKE else otherwise

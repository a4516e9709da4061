"""Settings as nested dicts and back: what any config dataclass, its TOML files and its flags have in common."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from utils.errors import ConfigError

Built = TypeVar("Built")
LATEST = "latest"
"""Value of `resume` that stands for the newest run."""


def require(holds: bool, rule: str, came: object) -> None:
    """Raise ConfigError unless the rule holds."""
    if not holds:
        raise ConfigError(f"expected {rule}, got {came!r}")


def to_dict(settings: Any) -> dict[str, Any]:
    """A config dataclass as nested dicts of JSON values; paths become strings with forward slashes."""
    return {name: _plain(getattr(settings, name)) for name in setting_types(type(settings))}


def from_dict(values: Mapping[str, Any], kind: type[Built]) -> Built:
    """The config dataclass that nested dicts describe; what they leave out takes its defaults.

    Raises ConfigError for a name that is no setting, a value of the wrong type or one that breaks a rule.
    """
    return _build(values, kind, "")


def flatten(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Nested dicts as one dict from joined names to values."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}{separator}", separator))
        else:
            flat[prefix + name] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """One dict from dotted names to values as nested dicts."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *concerns, last = name.split(".")
        table = nested
        for concern in concerns:
            table = table.setdefault(concern, {})
        table[last] = value
    return nested


def leaves(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of a config dataclass by dotted name."""
    found: dict[str, Any] = {}
    for name in setting_types(type(settings)):
        value = getattr(settings, name)
        found.update(leaves(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else {prefix + name: value})
    return found


def settings_hash(settings: Any, free: Collection[str]) -> str:
    """Return the sha256 (hex) of the settings that shape results: all but the `free` ones.

    Two runs with the same hash may continue one another. Of a file only the name counts, as it may lie elsewhere.
    """
    # Through from_dict, so that a float setting given as an integer (5 for 5.0) hashes alike.
    values = leaves(from_dict(to_dict(settings), type(settings)))
    counted = {name: _file_name(value) for name, value in values.items() if name not in free}
    return hashlib.sha256(json.dumps(counted, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _file_name(value: Any) -> Any:
    return value.name if isinstance(value, Path) else value


def settings_to_resume(began: Built, now: Built, explicit: frozenset[str], free: frozenset[str]) -> Built:
    """Return the settings that a run began with, changed where `now` may change them.

    Args:
        explicit: dotted names of the settings that the user gave now.
        free: settings that leave results as they are. A file may also lie elsewhere, under the same name.

    Raises:
        ConfigError: the user gave another setting than the run began with.
    """
    before, after = leaves(began), leaves(now)
    for name in sorted(explicit - free):
        if _file_name(before[name]) != _file_name(after[name]):
            raise ConfigError(
                f"expected {name} = {_plain(before[name])!r}, with which the run began, got {_plain(after[name])!r}; "
                "leave it out, or start a new run without --resume"
            )
    taken = {name: value for name, value in after.items() if name in explicit or name in ("resume", "runs_dir")}
    return from_dict(nest({**before, **taken}), type(began))


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid name most like `name`, as a whole or by its part after the last dot."""

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name, candidate).ratio()
        last = difflib.SequenceMatcher(None, _last_part(name), _last_part(candidate)).ratio()
        return max(whole, last)

    return max(valid, key=likeness)


def _last_part(name: str) -> str:
    return name.lstrip("-").rsplit(".", 1)[-1]


def setting_types(kind: type) -> dict[str, Any]:
    """Names and types of a config dataclass's fields, in order, markers for the command line taken off."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def _build(values: Any, kind: type[Built], prefix: str) -> Built:
    types_by_name = setting_types(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(f"expected a table of settings for {prefix.rstrip('.')}, got {values!r}")
    for name in values:
        if name not in types_by_name:
            known = nearest(name, types_by_name)
            raise ConfigError(f"expected a known setting, got {prefix + name!r}; the nearest is {prefix + known!r}")
    return kind(**{name: checked(value, types_by_name[name], prefix + name) for name, value in values.items()})


def checked(value: Any, kind: Any, name: str) -> Any:
    """`value` (as JSON or TOML hold it) as the type of setting `name`; ConfigError where it is not one."""
    if dataclasses.is_dataclass(kind):
        return _build(value, kind, f"{name}.")  # type: ignore[arg-type]
    for choice in _alternatives(kind):
        if _fits(value, choice):
            return choice(value) if choice in (float, Path) else value
    message = f"expected {describe(kind)} for {name}, got {value!r}"
    if get_origin(kind) is Literal and isinstance(value, str):
        message += f"; the nearest is {nearest(value, get_args(kind))!r}"
    raise ConfigError(message)


def describe(kind: Any) -> str:
    """What a setting of this type may be, in words."""
    words = {int: "an integer", float: "a finite number", bool: "true or false", str: "a name", Path: "a path"}
    choices = [choice for choice in _alternatives(kind) if choice is not type(None)]
    return " or ".join(" or ".join(get_args(choice)) or words[choice] for choice in choices)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is Path:
        return isinstance(value, str | Path)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return value.as_posix() if isinstance(value, Path) else value

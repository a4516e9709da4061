"""The command line: flags made from config dataclasses override a TOML file, which overrides defaults."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from utils.config.kinds import Mark
from utils.config.settings import (
    LATEST,
    Setting,
    flatten,
    from_dict,
    hint,
    read_toml,
    require_known,
    settings_of,
    to_dict,
)
from utils.errors import ConfigError

DEFAULT_COMMAND = "train"
_FLAG = re.compile(r"^--[^=]*")


@dataclass(frozen=True)
class Command:
    """A row of the table of commands."""

    arguments: type[Any]
    """Dataclass of its arguments; a field `settings` adds a flag for every setting."""
    function: str
    """`module:function`, imported when the command runs; called with the arguments and, if they hold settings, the
    names of those given."""
    check: Callable[[Any], object] | None = None
    """Called with the arguments before the function's module is imported, which takes seconds: refuses what it can."""
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Makes the defaults, by dotted name, that depend on what the user asked for and on the machine."""
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What profiles change, which the help shows."""
    lists: Callable[[], Mapping[str, Mapping[str, str]]] = dict
    """Returns texts by name, by title, which the help shows after the commands."""

    @property
    def settings(self) -> type[Any] | None:
        """Dataclass of the settings that it takes, if any."""
        return get_type_hints(self.arguments).get("settings")

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the settings by dotted name."""
        return {} if self.settings is None else flatten(to_dict(self.settings()))


@dataclass(frozen=True)
class ParsedCommand:
    """A command with its arguments."""

    name: str
    command: Command
    arguments: Any
    explicit: frozenset[str]
    """Dotted names of the settings given by flags or the TOML file, for example `env.cost_bps`."""

    def with_flags(self, program: str, flags: Sequence[str]) -> str:
        """Return the command line of this command with other flags, and with its own arguments that a run may change.

        Args:
            program: path of the program.
        """
        words = ["python", program, *([] if self.name == DEFAULT_COMMAND else self.name.split()), *flags]
        for setting in settings_of(self.command.arguments).values():
            if len(setting.path) == 1 and Mark.FREE in setting.notes:
                value = getattr(self.arguments, setting.name)
                words += setting.words(value) if value != setting.field.default else []
        return shlex.join(words)

    def run(self) -> None:
        """Check the arguments, import the command's function and call it."""
        if self.command.check is not None:
            self.command.check(self.arguments)
        module, _, function = self.command.function.partition(":")
        call = getattr(importlib.import_module(module), function)
        call(*([self.arguments] if self.command.settings is None else [self.arguments, self.explicit]))


def parse_command(argv: Sequence[str], commands: Mapping[str, Command]) -> ParsedCommand:
    """Return the command in `argv` (without the program's name).

    Settings come from the defaults, then the TOML file, then the flags, and are validated together.
    Raises ConfigError with a one-line message for what cannot be run, SystemExit(0) after printing help.
    """
    name, words = _split_command(argv, commands)
    command = commands[name]
    known, values = settings_of(command.arguments), _read_words(words, name, commands)
    spelled = {key: known[key].flags[0] for key in values if known[key].flags}
    if command.settings is not None and "config" in values:
        path = Path(values["config"])
        stated = {key.replace("-", "_"): value for key, value in flatten(read_toml(path, "--config")).items()}
        require_known(stated, command.settings, f" in {path}")
        values = stated | values
    explicit = frozenset(key for key in values if known[key].path[0] == "settings")
    if {"run", "resume"} <= explicit:
        raise ConfigError(f"expected --run or --resume, got both ({values['run']!r}, {values['resume']!r})")
    arguments = from_dict(command.defaults | values, command.arguments, spelled)
    if command.adapt is not None:  # only now, for it may look for a GPU, which takes seconds
        arguments = from_dict({**command.defaults, **command.adapt(values), **values}, command.arguments, spelled)
    return ParsedCommand(name, command, arguments, explicit)


def _split_command(argv: Sequence[str], commands: Mapping[str, Command]) -> tuple[str, list[str]]:
    """Return the name of the command, one or two words, and the words after it; the default is `train`."""
    words = list(argv)
    if not words or words[0].startswith("-"):
        words.insert(0, DEFAULT_COMMAND)
    group = [name for name in commands if name.startswith(f"{words[0]} ")]
    if group and (len(words) == 1 or words[1].startswith("-")):
        words.insert(1, DEFAULT_COMMAND)
    count = 2 if group else 1
    name = " ".join(words[:count])
    if name not in commands:
        known = ", ".join(commands)
        raise ConfigError(f"expected a command ({known}), got {name!r}{hint(name, group or commands, '; see --help')}")
    return name, words[count:]


def _read_words(words: Sequence[str], name: str, commands: Mapping[str, Command]) -> dict[str, Any]:
    """Return the values given on the command line by dotted name; of a repeated flag the last counts."""
    known = settings_of(commands[name].arguments)
    flags = {flag: setting for setting in known.values() for flag in setting.flags}
    parser = _parser(name, commands, wants_help=not {"-h", "--help"}.isdisjoint(words))
    spelled = [_FLAG.sub(lambda flag: flag[0].replace("_", "-"), word) for word in words]
    try:
        values, rest = parser.parse_known_args(spelled)
    except argparse.ArgumentError as error:  # the value of a flag is missing, or there is one too many
        flag = str(error.argument_name).partition("/")[0]
        if flag not in flags or flags[flag].kind is bool:
            raise ConfigError(f"expected {flag} without a value, got one; see --help") from None
        raise ConfigError(f"expected {flags[flag].phrase} after {flag}, got nothing") from None
    if rest and rest[0].startswith("-"):
        flag = rest[0].partition("=")[0]
        raise ConfigError(f"expected a known flag, got {flag!r}{hint(flag, [*flags, '--help'], '; see --help')}")
    if rest:
        raise ConfigError(f"expected a flag (such as --help), got {rest[0]!r}")
    for key, setting in known.items():
        if setting.field.is_required() and key not in values:
            raise ConfigError(f"expected {key.upper()}, got nothing; see --help")
    return vars(values)


class _Switch(argparse.Action):
    """Sets a setting to true by its own flag, to false by the one with `no-`."""

    def __call__(self, parser: object, namespace: object, values: object, option: str | None = None) -> None:
        setattr(namespace, self.dest, not str(option).lstrip("-").rpartition(".")[2].startswith("no-"))


def _parser(name: str, commands: Mapping[str, Command], wants_help: bool) -> argparse.ArgumentParser:
    """Return the parser of a command; its namespace holds only what was given."""
    kind = commands[name].arguments
    known, texts = settings_of(kind), _help_texts(commands[name]) if wants_help else {}
    places = [_place(setting) for setting in known.values() if not setting.flags]
    start = [_program(name), *(["[command]"] if name == DEFAULT_COMMAND else []), "[-h]" if places else "[flags]"]
    parser = argparse.ArgumentParser(
        usage=" ".join([*start, *places]),
        description=_overview(commands) if wants_help and name == DEFAULT_COMMAND else _wrapped(str(kind.__doc__)),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=8),
    )
    groups: dict[str, Any] = {"": parser}
    for key, setting in known.items():
        concern = key.rpartition(".")[0]
        if concern not in groups:
            groups[concern] = parser.add_argument_group(concern, _wrapped(str(setting.owner.__doc__)))
        _add(groups[concern], setting, texts.get(key))
    return parser


def _place(setting: Setting) -> str:
    name = setting.name.upper()
    word = f"{name} [{name} ...]" if get_origin(setting.kind) is tuple else name
    return word if setting.field.is_required() else f"[{word}]"


def _add(group: Any, setting: Setting, text: str | None) -> None:
    name, kind, flags = setting.name, setting.kind, setting.flags
    if not flags:
        group.add_argument(name, nargs="*" if get_origin(kind) is tuple else "?", metavar=name.upper(), help=text)
    elif kind is bool:
        group.add_argument(*flags, dest=name, action=_Switch, nargs=0, help=text)
    else:
        options: dict[str, Any] = {"dest": name, "metavar": setting.word, "type": partial(_number, kind=kind)}
        if Mark.NEWEST_IF_BARE in setting.notes:
            options |= {"nargs": "?", "const": LATEST}
        for flag, shown in zip(flags, (text, argparse.SUPPRESS), strict=False):
            group.add_argument(flag, help=shown, **options)


def _number(text: str, kind: Any) -> Any:
    """Return the number that the text of a number's flag is, else the text, which the check then refuses."""
    if kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _help_texts(command: Command) -> dict[str, str]:
    """Return the help of every argument and setting: meaning, limits, and defaults by profile."""
    defaults, texts = command.defaults, {}
    for name, setting in settings_of(command.arguments).items():
        text, default = setting.help, defaults.get(name, setting.field.default)
        facts = [setting.limits] if setting.limits else []
        if default is not None and not setting.field.is_required() and "default:" not in text:
            facts.append(f"default: {default}")
            facts += [f"{profile}: {changes[name]}" for profile, changes in command.profiles.items() if name in changes]
        texts[name] = (text + (f" ({'; '.join(facts)})" if facts else "")).replace("%", "%%")
    return texts


def _program(name: str) -> str:
    return "python main.py" if name == DEFAULT_COMMAND else f"python main.py {name}"


def _wrapped(text: str, **indents: Any) -> str:
    width = shutil.get_terminal_size().columns - 2
    return "\n\n".join(textwrap.fill(part, width, **indents) for part in inspect.cleandoc(text).split("\n\n"))


def _overview(commands: Mapping[str, Command]) -> str:
    """Return what all commands are for, by the first paragraphs of their docstrings, and the default one's lists."""
    purposes = {name: str(command.arguments.__doc__).split("\n\n")[0] for name, command in commands.items()}
    title = f"commands, each with a --help of its own ({DEFAULT_COMMAND} may be left out):"
    lists = {title: purposes, **commands[DEFAULT_COMMAND].lists()}
    return "\n\n".join("\n".join([title, *map(_entry, entries.items())]) for title, entries in lists.items())


def _entry(item: tuple[str, str]) -> str:
    return _wrapped(item[1], initial_indent=f"  {item[0]:<20}  ", subsequent_indent=" " * 24)

"""The command line: flags made from config dataclasses override a TOML file, which overrides defaults."""

from __future__ import annotations

import argparse
import dataclasses
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
from typing import Any, get_origin

from utils.config.kinds import Mark
from utils.config.settings import (
    LATEST,
    Setting,
    alternatives,
    check_rules,
    checked,
    checked_settings,
    describe,
    flatten,
    hint,
    metavar,
    read_toml,
    setting_help,
    setting_types,
    settings_of,
    to_dict,
    with_settings,
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
    defaults: Callable[[Mapping[str, Any]], Any] | None = None
    """Makes the defaults from the given settings; None: the dataclass's own."""
    profiles: Mapping[str, Any] = field(default_factory=dict)
    """Settings by profile, whose differences from the defaults the help shows."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Command lines without the program, and what they do, which the help shows."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the program reads, which the help shows."""
    check: Callable[[Any], object] | None = None
    """Called with the arguments before the function's module is imported, which takes seconds: refuses what it can."""

    @property
    def settings(self) -> type[Any] | None:
        """Dataclass of the settings that it takes, if any."""
        return setting_types(self.arguments).get("settings")


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
        known, kind = arguments_of(self.command.arguments), self.command.arguments
        own = [item for item in dataclasses.fields(kind) if item.name in known and Mark.FREE in known[item.name].notes]
        given = {item.name: getattr(self.arguments, item.name) for item in own}
        changed = {item.name: given[item.name] for item in own if given[item.name] != item.default}
        name = [] if self.name == DEFAULT_COMMAND else self.name.split()
        return shlex.join(["python", program, *name, *flags, *words_of(changed, known)])

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
    given = _read_words(words, name, commands)
    own = {key: given.pop(key) for key in setting_types(command.arguments) if key in given}
    if command.settings is not None:
        if (path := own.get("config")) is not None:
            flat = flatten(read_toml(path, "--config")).items()
            stated = {key.replace("-", "_"): value for key, value in flat}
            given = {**checked_settings(stated, command.settings, f" in {path}"), **given}
        if {"run", "resume"} <= given.keys():
            raise ConfigError(f"expected --run or --resume, got both ({given['run']!r}, {given['resume']!r})")
        defaults = command.settings() if command.defaults is None else command.defaults(given)
        own["settings"] = with_settings(defaults, given)
    arguments = command.arguments(**own)
    check_rules(arguments, of_machine=True, prefix="--")
    return ParsedCommand(name, command, arguments, frozenset(given))


def _split_command(argv: Sequence[str], commands: Mapping[str, Command]) -> tuple[str, list[str]]:
    """Return the name of the command, one or two words, and the words after it; the default is `train`."""
    if not argv or argv[0].startswith("-"):
        return DEFAULT_COMMAND, list(argv)
    group = [name for name in commands if name.startswith(f"{argv[0]} ")]
    if group and (len(argv) == 1 or argv[1].startswith("-")):
        return f"{argv[0]} {DEFAULT_COMMAND}", list(argv[1:])
    count = 2 if group else 1
    name = " ".join(argv[:count])
    if name not in commands:
        known = ", ".join(commands)
        raise ConfigError(f"expected a command ({known}), got {name!r}{hint(name, group or commands, '; see --help')}")
    return name, list(argv[count:])


def _program(name: str) -> str:
    return "python main.py" if name == DEFAULT_COMMAND else f"python main.py {name}"


def arguments_of(kind: type) -> dict[str, Setting]:
    """Return every argument and setting of a command's dataclass by its dotted name."""
    return {name.removeprefix("settings."): setting for name, setting in settings_of(kind).items()}


def flags_of(name: str, setting: Setting) -> list[str]:
    """Return every spelling of a setting's flag, the usual one first; [] for a positional argument."""
    if Mark.POSITIONAL in setting.notes:
        return []
    *concerns, word = name.replace("_", "-").split(".")
    prefixes = ["".join(f"{concern}." for concern in concerns)]
    if Mark.SHORT in setting.notes:
        prefixes.insert(0, "")
    stems = ("", "no-") if setting.kind is bool else ("",)
    return [f"--{prefix}{stem}{word}" for prefix in prefixes for stem in stems]


def words_of(values: Mapping[str, Any], known: Mapping[str, Setting]) -> list[str]:
    """Return the words of a command line that give settings, by dotted name, these values; None is left out."""
    words: list[str] = []
    for name, value in values.items():
        flag, *others = flags_of(name, known[name])
        if known[name].kind is bool:
            words.append(flag if value else others[-1])
        elif value is not None:
            words += [flag, str(value)]
    return words


def _read_words(words: Sequence[str], name: str, commands: Mapping[str, Command]) -> dict[str, Any]:
    """Return the values given on the command line by dotted name; of a repeated flag the last counts."""
    known = arguments_of(commands[name].arguments)
    parser = _parser(name, commands, wants_help=not {"-h", "--help"}.isdisjoint(words))
    spelled = [_FLAG.sub(lambda flag: flag[0].replace("_", "-"), word) for word in words]
    try:
        given, rest = parser.parse_known_args(spelled)
    except argparse.ArgumentError as error:  # the value of a flag is missing, or there is one too many
        flag = str(error.argument_name).partition("/")[0]
        kind = next(setting.kind for key, setting in known.items() if flag in flags_of(key, setting))
        if kind is bool:
            raise ConfigError(f"expected {flag} without a value, got one; see --help") from None
        raise ConfigError(f"expected {describe(kind)} after {flag}, got nothing") from None
    if rest and rest[0].startswith("-"):
        flag, flags = rest[0].partition("=")[0], [flag for key, one in known.items() for flag in flags_of(key, one)]
        raise ConfigError(f"expected a known flag, got {flag!r}{hint(flag, [*flags, '--help'], '; see --help')}")
    if rest:
        raise ConfigError(f"expected a flag (such as --help), got {rest[0]!r}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in vars(given).items()}
    values = {key: value for key, value in values.items() if value not in (None, ())}
    for item in _required(commands[name].arguments) - values.keys():
        raise ConfigError(f"expected {item.upper()}, got nothing; see --help")
    return values


def _required(kind: type[Any]) -> set[str]:
    every = dataclasses.fields(kind)
    return {item.name for item in every if item.default is item.default_factory is dataclasses.MISSING}


class _Switch(argparse.Action):
    """Sets a setting to true by its own flag, to false by the one with `no-`."""

    def __call__(self, parser: object, given: object, values: object, option: str | None = None) -> None:
        setattr(given, self.dest, not str(option).lstrip("-").rpartition(".")[2].startswith("no-"))


def _parser(name: str, commands: Mapping[str, Command], wants_help: bool) -> argparse.ArgumentParser:
    """Return the parser of a command; its namespace holds only what was given."""
    kind = commands[name].arguments
    known = arguments_of(kind)
    places = []
    for key, setting in known.items():
        if Mark.POSITIONAL in setting.notes:
            word = key.upper() + (f" [{key.upper()} ...]" if get_origin(setting.kind) is tuple else "")
            places.append(word if key in _required(kind) else f"[{word}]")
    words = [_program(name), *(["[command]"] if name == DEFAULT_COMMAND else []), "[-h]" if places else "[flags]"]
    parser = argparse.ArgumentParser(
        usage=" ".join([*words, *places]),
        description=_overview(commands) if name == DEFAULT_COMMAND else _wrapped(str(kind.__doc__)),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=8),
    )
    groups: dict[str, Any] = {"": parser}
    texts = _help_texts(commands[name]) if wants_help else {}
    for key, setting in known.items():
        concern = key.rpartition(".")[0]
        if concern not in groups:
            groups[concern] = parser.add_argument_group(concern, _wrapped(str(setting.owner.__doc__)))
        _add(groups[concern], key, setting, texts.get(key, ""))
    return parser


def _add(group: Any, name: str, setting: Setting, text: str) -> None:
    flags = flags_of(name, setting)
    if setting.kind is bool:
        group.add_argument(*flags, dest=name, action=_Switch, nargs=0, help=text)
        return
    has_many = get_origin(setting.kind) is tuple
    read = partial(_read_value, setting=setting, name=(flags or [name.upper()])[0])
    if not flags:
        nargs = "*" if has_many else "?"
        group.add_argument(name, nargs=nargs, default=None, metavar=name.upper(), type=read, help=text)
        return
    optional: dict[str, Any] = {"nargs": "?", "const": LATEST} if Mark.NEWEST_IF_BARE in setting.notes else {}
    group.add_argument(flags[0], dest=name, metavar=metavar(setting.kind), type=read, help=text, **optional)
    for flag in flags[1:]:
        group.add_argument(flag, dest=name, type=read, help=argparse.SUPPRESS, **optional)


def _read_value(text: str, setting: Setting, name: str) -> Any:
    value: Any = text
    for number in (int, float):
        if number in alternatives(setting.kind):
            with suppress(ValueError):
                value = number(text)
    return text if get_origin(setting.kind) is tuple else checked(value, setting, name)


def _help_texts(command: Command) -> dict[str, str]:
    """Return the help of every argument and setting: meaning, limits, and defaults by profile."""
    defaults = {item.name: item.default for item in dataclasses.fields(command.arguments)}
    if command.settings is not None:
        defaults |= flatten(to_dict(command.settings()))
    profiles = {profile: flatten(to_dict(settings)) for profile, settings in command.profiles.items()}
    known, texts = arguments_of(command.arguments), {}
    docstrings = {owner: setting_help(owner) for owner in {setting.owner for setting in known.values()}}
    for name, setting in known.items():
        last, default = name.rpartition(".")[2], defaults[name]
        is_number = not {int, float}.isdisjoint(alternatives(setting.kind))
        facts = [rule.words.format(metavar(setting.kind)) for rule in setting.rules if is_number]
        is_said = "default:" in docstrings[setting.owner][last]
        if default not in (None, dataclasses.MISSING) and not is_said:
            facts.append(f"default: {default}")
            facts += [
                f"{profile}: {own[name]}" for profile, own in profiles.items() if own.get(name, default) != default
            ]
        text = docstrings[setting.owner][last] + (f" ({'; '.join(facts)})" if facts else "")
        texts[name] = text.replace("%", "%%")
    return texts


def _wrapped(text: str, **indents: Any) -> str:
    width = shutil.get_terminal_size().columns - 2
    return "\n\n".join(textwrap.fill(part, width, **indents) for part in inspect.cleandoc(text).split("\n\n"))


def _overview(commands: Mapping[str, Command]) -> str:
    """Return what all commands are for, by the first paragraphs of their docstrings, examples, and the environment."""
    default = commands[DEFAULT_COMMAND]
    parts = {
        f"commands, each with a --help of its own ({DEFAULT_COMMAND} may be left out):": {
            name: str(command.arguments.__doc__).split("\n\n")[0] for name, command in commands.items()
        },
        "examples:": {f"{_program(DEFAULT_COMMAND)} {words}".strip(): does for words, does in default.examples.items()},
        "environment variables:": default.environment,
    }
    return "\n\n".join("\n".join([title, *_entries(entries)]) for title, entries in parts.items())


def _entries(entries: Mapping[str, str]) -> list[str]:
    """Return one entry per name: the name, and its text beside or below it."""
    lines = []
    for name, text in entries.items():
        head = f"  {name:<22}" if len(name) <= 20 else f"  {name}\n{' ' * 24}"
        first, *rest = _wrapped(text, initial_indent=" " * 24, subsequent_indent=" " * 24).split("\n")
        lines += [head + first[24:], *rest]
    return lines

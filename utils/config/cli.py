"""The command line: flags made from config dataclasses override a TOML file, which overrides defaults."""

import argparse
import importlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda stated: {}
    """Makes the defaults, by dotted name, that depend on what the user asked for and on the machine."""
    purpose: str = ""
    """What it is for, if not what the docstring of its arguments says."""

    @property
    def help(self) -> str:
        """What it is for."""
        return self.purpose or str(self.arguments.__doc__)

    @property
    def settings(self) -> type[Any] | None:
        """Dataclass of the settings that it takes, if any."""
        return get_type_hints(self.arguments).get("settings")


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


def parse_command(
    argv: Sequence[str],
    commands: Mapping[str, Command],
    lists: Callable[[], Mapping[str, Mapping[str, str]]] = dict,
) -> ParsedCommand:
    """Return the command in `argv` (without the program's name).

    Settings come from the defaults, then the TOML file, then the flags, and are validated together.

    Args:
        lists: returns texts by name, by title, which the help shows after the commands.

    Raises:
        ConfigError: what cannot be run, in one line.
        SystemExit: with 0, after the help.
    """
    words = list(argv) if argv and not argv[0].startswith("-") else [DEFAULT_COMMAND, *argv]
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in commands), None)
    if name is None:
        near = hint(" ".join(words[:2]), commands, hint(words[0], commands, "; see --help"))
        raise ConfigError(f"expected a command ({', '.join(commands)}), got {words[0]!r}{near}")
    words = words[len(name.split()) :]
    if {"-h", "--help"} & set(words):
        _show_help(name, commands, lists() if name == DEFAULT_COMMAND else {})
    command = commands[name]
    kind, known, values = command.arguments, settings_of(command.arguments), _read_words(words, command)
    if command.settings is not None and "config" in values:
        path = Path(values["config"])
        stated = {key.replace("-", "_"): value for key, value in flatten(read_toml(path, "--config")).items()}
        require_known(stated, command.settings, f" in {path}")
        values = stated | values
    explicit = frozenset(key for key in values if known[key].path[0] == "settings")
    if {"run", "resume"} <= explicit:
        raise ConfigError(f"expected --run or --resume, got both ({values['run']!r}, {values['resume']!r})")
    defaults = {} if command.settings is None else flatten(to_dict(command.settings()))
    arguments = from_dict(defaults | values, kind)
    for key in values:
        if Mark.INPUT in known[key].notes and not Path(values[key]).is_file():
            raise ConfigError(f"{known[key].flags[0]}: expected an existing file, got {values[key]!r}")
        if Mark.OUTPUT in known[key].notes and not Path(values[key]).parent.is_dir():
            raise ConfigError(f"{known[key].flags[0]}: expected a file in an existing folder, got {values[key]!r}")
    if adapted := command.adapt(values):  # only now, for it may look for a GPU, which takes seconds
        arguments = from_dict({**defaults, **adapted, **values}, kind)
    return ParsedCommand(name, command, arguments, explicit)


def _read_words(words: Sequence[str], command: Command) -> dict[str, Any]:
    """Return the values given on the command line by dotted name; of a repeated flag the last counts."""
    known = settings_of(command.arguments)
    flags = {flag: setting for setting in known.values() for flag in setting.flags}
    parser = argparse.ArgumentParser(
        add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False, exit_on_error=False
    )
    for setting in known.values():
        _add(parser, setting)
    spelled = [_FLAG.sub(lambda flag: flag[0].replace("_", "-"), word) for word in words]
    try:
        values, rest = parser.parse_known_args(spelled)
    except argparse.ArgumentError as error:  # the value of a flag is missing, or there is one too many
        flag = str(error.argument_name).partition("/")[0]
        wanted = "no value, got one" if flags[flag].kind is bool else f"{flags[flag].expected}, got nothing"
        raise ConfigError(f"{flag}: expected {wanted}; see --help") from None
    if rest and rest[0].startswith("-"):
        flag = rest[0].partition("=")[0]
        raise ConfigError(f"expected a known flag, got {flag!r}{hint(flag, [*flags, '--help'], '; see --help')}")
    if rest:
        raise ConfigError(f"expected a flag (such as --help), got {rest[0]!r}")
    for key, setting in known.items():
        if setting.field.is_required() and key not in values:
            raise ConfigError(f"expected {key.upper()}, got nothing; see --help")
    return vars(values)


def _add(group: Any, setting: Setting, text: str | None = None) -> None:
    """Add an argument to a parser or to a group of it."""
    name, kind, flags = setting.name, setting.kind, setting.flags
    if not flags:
        group.add_argument(name, nargs="*" if get_origin(kind) is tuple else "?", metavar=name.upper(), help=text)
    elif kind is bool:
        for flag, value in zip(flags, (True, False), strict=True):
            shown = text if value else f"Not {flags[0]}."
            group.add_argument(flag, dest=name, action="store_const", const=value, help=shown)
    else:
        options = {"nargs": "?", "const": LATEST} if Mark.NEWEST_IF_BARE in setting.notes else {}
        group.add_argument(
            *flags, dest=name, metavar=setting.word, type=partial(_number, kind=kind), help=text, **options
        )


def _number(text: str, kind: Any) -> Any:
    """Return the number that the text of a number's flag is, else the text, which the check then refuses."""
    if kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _show_help(name: str, commands: Mapping[str, Command], lists: Mapping[str, Mapping[str, str]]) -> None:
    """Print what a command is for, the lists, and the meaning, limits and default of every argument; then exit."""
    command = commands[name]
    known, program = settings_of(command.arguments), "python main.py"
    places = [setting.name.upper() for setting in known.values() if not setting.flags]
    parser = argparse.ArgumentParser(
        usage=" ".join([program, "[command]" if name == DEFAULT_COMMAND else name, *places, "[flags]"]),
        description=command.help,
        add_help=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=24),
    )
    if name == DEFAULT_COMMAND:
        title = f"commands, each with a --help of its own ({DEFAULT_COMMAND} may be left out)"
        lists = {title: {key: one.help.split("\n\n")[0] for key, one in commands.items()}, **lists}
    for title, texts in lists.items():
        group = parser.add_argument_group(title)
        for key, text in texts.items():
            group.add_argument(key, metavar=key, nargs="?", help=text.replace("%", "%%"))
    groups = {"": parser.add_argument_group("options")}
    defaults = {} if command.settings is None else flatten(to_dict(command.settings()))
    for key, setting in known.items():
        concern, default = key.rpartition(".")[0], defaults.get(key, setting.field.default)
        if concern not in groups:
            groups[concern] = parser.add_argument_group(concern, str(setting.owner.__doc__))
        facts = [setting.expected] if setting.expected != setting.word else []
        if default is not None and not setting.field.is_required() and "default:" not in setting.help:
            facts.append(f"default: {default}")
        _add(groups[concern], setting, f"{setting.help} ({'; '.join(facts)})".removesuffix(" ()").replace("%", "%%"))
    parser.print_help()
    raise SystemExit(0)

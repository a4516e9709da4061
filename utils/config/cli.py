"""The command line: flags made from config dataclasses override a TOML file, which overrides defaults."""

import argparse
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, get_origin, get_type_hints

from utils.config.kinds import Mark
from utils.config.settings import (
    LATEST,
    Setting,
    from_dict,
    hint,
    named_values,
    read_settings,
    require_not_removed,
    settings_of,
)
from utils.errors import ConfigError

DEFAULT_COMMAND = "train"
HELP_ALL = "--help-all"
INSTALLED = "erl-trader"
"""Name of the program where it is installed."""
Lists = Mapping[str, Mapping[str, str]]
"""Texts by name, by the title of their list."""


class Command(NamedTuple):
    """A row of the table of commands."""

    arguments: type[Any]
    """Dataclass of its arguments; a field `settings` adds a flag for every setting."""
    function: str
    """`module:function`, imported when the command runs; called with the arguments and, if they hold settings, the
    names of those given."""
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Makes the defaults, by dotted name, that depend on what the user asked for and on the machine."""


@dataclass(frozen=True)
class ParsedCommand:
    """A command with its arguments."""

    name: str
    function: str
    arguments: Any
    explicit: frozenset[str]
    """Dotted names of the settings given by flags or the TOML file, for example `env.cost_bps`."""

    def with_flags(self, program: str, flags: Sequence[str]) -> str:
        """Return the command line of this command with other flags, and with its own arguments that a run may change.

        Args:
            program: path of the program.
        """
        words = [] if self.name == DEFAULT_COMMAND else self.name.split()
        words += flags
        for setting in settings_of(type(self.arguments)).values():
            if len(setting.path) == 1 and (Mark.FREE in setting.field.metadata or not setting.flag):
                words += setting.words(getattr(self.arguments, setting.name))
        return command_line(*words, program=program)

    def run(self) -> None:
        """Import the command's function and call it."""
        function = pkgutil.resolve_name(self.function)
        if hasattr(self.arguments, "settings"):
            function(self.arguments, self.explicit)
        else:
            function(self.arguments)


def parse_command(
    argv: Sequence[str],
    commands: Mapping[str, Command],
    lists: Callable[[str, bool], Lists] = lambda name, is_whole: {},
) -> ParsedCommand:
    """Return the command in `argv` (without the program's name).

    Settings come from the defaults, then the TOML file, then the flags, and are validated together.

    Args:
        lists: returns what the help of a command or a group begins with, in short or whole.

    Raises:
        ConfigError: what cannot be run, in one line.
        SystemExit: with 0, after the help.
    """
    words = list(argv) if argv and not argv[0].startswith("-") else [DEFAULT_COMMAND, *argv]
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in commands), None)
    asked = {"-h", "--help", HELP_ALL} & set(words)
    if name is None:
        _group_help(words, commands, lists, is_asked=bool(asked))
    words, command = words[len(name.split()) :], commands[name]
    known, settings = settings_of(command.arguments), get_type_hints(command.arguments).get("settings")
    defaults = {} if settings is None else named_values(settings())
    if asked:
        is_whole = HELP_ALL in asked
        _parser(name, command, defaults, lists(name, is_whole), is_whole=is_whole).print_help()
        raise SystemExit(0)
    try:
        parsed, rest = _parser(name, command, defaults).parse_known_args(words)
    except argparse.ArgumentError as error:  # the value of a flag is missing, or there is one too many
        raise ConfigError(f"{error.argument_name}: {error.message}; see --help") from None
    if rest:
        if late := next((word for word in rest if any(word == one.partition(" ")[0] for one in commands)), None):
            raise ConfigError(f"expected the command before its flags, got {late!r} after flags; put it first")
        wrong, flags = rest[0].partition("=")[0], [setting.flag for setting in known.values()]
        require_not_removed(wrong)
        raise ConfigError(f"expected a known flag, got {wrong!r}{hint(wrong, flags, '; see --help')}")
    values = vars(parsed)
    if settings is not None and "config" in values:
        values = read_settings(Path(values["config"])) | values
    explicit = frozenset(values.keys() & defaults.keys())
    if {"run", "resume"} <= explicit:
        raise ConfigError(f"expected --run or --resume, got both ({values['run']!r}, {values['resume']!r})")
    from_dict({**defaults, **values}, command.arguments)  # refused before `adapt` looks for a GPU, which takes seconds
    arguments = from_dict({**defaults, **command.adapt(values), **values}, command.arguments)
    return ParsedCommand(name, command.function, arguments, explicit)


def _group_help(
    words: Sequence[str], commands: Mapping[str, Command], lists: Callable[[str, bool], Lists], *, is_asked: bool
) -> NoReturn:
    """Show the help of a group of commands; ConfigError where it is not asked for, or there is no such group."""
    group = [name.partition(" ")[2] for name in commands if name.startswith(f"{words[0]} ")]
    if group and is_asked:
        _bare_parser(f"{words[0]} COMMAND", None, lists(words[0], False)).print_help()
        raise SystemExit(0)
    if group:
        wrong, see = " ".join(words[1:2]), f"; see {words[0]} --help"
        near = hint(wrong, group, see) if wrong else see
        raise ConfigError(f"expected a command of {words[0]} ({', '.join(group)}), got {wrong or 'none'}{near}")
    known = dict.fromkeys(name.partition(" ")[0] for name in commands)
    near = hint(words[0], known, "; see --help")
    raise ConfigError(f"expected a command ({', '.join(known)}), got {words[0]!r}{near}")


def command_line(*words: str, program: str = "main.py") -> str:
    """Return a whole command line: of the installed command if the user gave that one, else of the `program`."""
    start = [INSTALLED] if Path(sys.argv[0]).stem == INSTALLED else ["python", program]
    return shlex.join([*start, *words])


def in_short(text: str) -> str:
    """Return the first clause of a help text."""
    return re.split(r"[.:;](?: |$)", text)[0]


def _bare_parser(usage: str, description: str | None, lists: Lists) -> argparse.ArgumentParser:
    """Make a parser without arguments, whose help shows the lists."""
    parser = argparse.ArgumentParser(
        usage=f"{command_line()} {usage} [flags]",
        description=description,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=24),
    )
    for title, texts in lists.items():
        group = parser.add_argument_group(title)
        for key, text in texts.items():
            group.add_argument(key, metavar=key, nargs="?", help=text.replace("%", "%%"))
    return parser


def _parser(
    name: str,
    command: Command,
    defaults: Mapping[str, Any],
    lists: Lists = MappingProxyType({}),
    *,
    is_whole: bool = True,
) -> argparse.ArgumentParser:
    """Make the parser of a command, whose help says the meaning, limits and default of its arguments.

    Unless it `is_whole`, of the settings of a run only the main ones are known.
    """
    known = settings_of(command.arguments)
    hidden = {key for key, one in known.items() if one.path[0] == "settings" and Mark.MAIN not in one.field.metadata}
    places = [setting.name.upper() for setting in known.values() if not setting.flag]
    words = ["[command]" if name == DEFAULT_COMMAND else name, *places]
    parser = _bare_parser(" ".join(words), command.arguments.__doc__, lists)
    groups = {"": parser.add_argument_group("options")}
    if is_short := bool(hidden) and not is_whole:
        known = {key: setting for key, setting in known.items() if key not in hidden}
        parser.epilog = f"{HELP_ALL} shows {len(hidden)} further flags."
    for key, setting in known.items():
        concern, kind, default = key.rpartition(".")[0], setting.kind, defaults.get(key, setting.field.default)
        if concern not in groups:
            groups[concern] = parser.add_argument_group(concern, str(setting.owner.__doc__))
        facts = [setting.expected] if setting.expected != setting.word else []
        if default is not None and not setting.field.is_required() and "default:" not in setting.help:
            facts.append(f"default: {default}")
        text = in_short(setting.help) if is_short else f"{setting.help} ({'; '.join(facts)})".removesuffix(" ()")
        text = text.replace("%", "%%")
        options: dict[str, Any] = {"metavar": setting.word, "type": partial(_value, setting=setting)}
        if not setting.flag:
            options = {"metavar": key.upper(), "nargs": "*" if get_origin(kind) is tuple else "?"}
        elif get_origin(kind) is tuple:
            options |= {"nargs": "+", "action": "extend"}
        elif kind is bool:
            options = {"action": "store_const", "const": not default}
        elif Mark.NEWEST_IF_BARE in setting.field.metadata:
            options |= {"nargs": "?", "const": LATEST}
        if setting.flag:
            options["dest"] = key
        groups[concern].add_argument(setting.flag or key, help=text, **options)
    return parser


def _value(text: str, setting: Setting) -> Any:
    """Return the value of a flag: a number if it is one, else its text, which the check of the settings may refuse.

    Raises ConfigError for a file that is not there to be read, or cannot be there to be written.
    """
    if Mark.INPUT in setting.field.metadata and not Path(text).is_file():  # a pipe or a device may never end
        folder = f"; make one of the folder by: {command_line('prepare', text, 'prices.parquet')}"
        is_folder = setting.flag == "--data" and Path(text).is_dir()
        raise ConfigError(f"{setting.flag}: expected an existing file, got {text!r}{folder if is_folder else ''}")
    if Mark.OUTPUT in setting.field.metadata and (Path(text).is_dir() or not Path(text).parent.is_dir()):
        raise ConfigError(f"{setting.flag}: expected a file in an existing folder, got {text!r}")
    if setting.kind in (int, float):
        with suppress(ValueError):
            return setting.kind(text)
    return text

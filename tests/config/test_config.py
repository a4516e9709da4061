"""Settings and the command line: precedence, names, refusals, and the list of all flags."""

import dataclasses
import hashlib
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.synthetic.kinds import PLANTED_KINDS
from training.commands.table import COMMANDS, help_lists
from utils import checkout
from utils.config.cli import ParsedCommand, parse_command
from utils.config.kinds import Mark
from utils.config.settings import (
    REMOVED,
    Setting,
    flatten,
    from_dict,
    read_settings,
    settings_hash,
    settings_of,
    settings_to_resume,
    to_dict,
    with_settings,
)
from utils.config.trader import Config, DataConfig, EnvironmentConfig, profile_config
from utils.errors import ConfigError
from utils.runs.run_log import RunLog

NOT_THERE = Path("no-such-folder/stock_data.parquet")

FLAG_VALUES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "--generations": ("generations", st.integers(1, 10**6)),
    "--seed": ("seed", st.integers(0, 2**63 - 1)),
    "--population-size": ("evolution.population_size", st.integers(2, 64)),
    "--rivals": ("evaluation.rivals", st.sampled_from(["learned", "none"])),
    "--runs-dir": ("runs_dir", st.sampled_from(["runs", "/tmp/other", "a b"])),
    "--run": ("run", st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)),
    "--env.cost-bps": ("env.cost_bps", st.floats(0, 9999)),
    "--env.fill": ("env.fill", st.sampled_from(["next_open", "same_close"])),
    "--learning.tau": ("learning.tau", st.floats(0.01, 1)),
}
"""A setting and its values by flag."""


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[str], dict[str, Any]]:
    words: list[str] = []
    meant: dict[str, Any] = {}
    for flag in draw(st.lists(st.sampled_from(sorted(FLAG_VALUES)), unique=True)):
        name, values = FLAG_VALUES[flag]
        meant[name] = draw(values)
        words += [f"{flag}={meant[name]}"] if draw(st.booleans()) else [flag, str(meant[name])]
    if draw(st.booleans()):
        meant["verbose"] = True
        words.append("--verbose")
    return words, meant


def parse(*argv: str, cuda: bool = False, default_data: Path = NOT_THERE) -> ParsedCommand:
    with (
        mock.patch("torch.cuda.is_available", return_value=cuda),
        mock.patch("utils.config.trader.DEFAULT_DATA", default_data),
    ):
        return parse_command(argv, COMMANDS, help_lists)


def settings_from(*argv: str, **options: Any) -> Config:
    settings: Config = parse(*argv, **options).arguments.settings
    return settings


def refusal(*argv: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert re.match(r"--[a-z.-]+: |[A-Z]+: |expected ", message)
    return message


@settings(max_examples=50)
@given(command_lines())
def test_flags_set_what_they_name_and_nothing_else(line: tuple[list[str], dict[str, Any]]) -> None:
    words, meant = line
    command = parse(*words)
    assert command.explicit == meant.keys()
    values = to_dict(command.arguments.settings)
    assert flatten(values) == flatten(to_dict(profile_config("quick"))) | meant
    assert from_dict(json.loads(json.dumps(values)), Config) == command.arguments.settings


def known_settings(name: str) -> Iterable[Setting]:
    return settings_of(COMMANDS[name].arguments).values()


def all_flags(name: str) -> set[str]:
    return {setting.flag for setting in known_settings(name)} - {""}


def test_a_new_flag_is_a_decision() -> None:
    listed: dict[str, set[str]] = {}
    for path in Path(__file__).parents[1].glob("*/flags.txt"):
        for entry in re.split(r"\n(?! )", path.read_text().strip()):
            name, _, flags = entry.partition(":")
            listed[name] = set(flags.split())
    assert {name: all_flags(name) for name in COMMANDS} == listed


def shown_help(capsys: pytest.CaptureFixture[str], *argv: str, flag: str = "--help-all") -> str:
    with pytest.raises(SystemExit) as caught:
        parse(*argv, flag)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_begins_with_commands_and_examples_and_names_every_setting_and_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shown_help(capsys, "--seed", "3")
    places = [out.index(part) for part in ("usage:", "commands,", "examples:", "environment variables:", "options:")]
    assert places == sorted(places) and len(out[: places[3]].splitlines()) < 60
    assert all_flags("train") <= set(re.findall(r"--[a-z][a-z.-]+", out[places[4] :]))
    assert "Agents of the population. (INT >= 2; default: 16)" in " ".join(out.split())
    assert all(f"\n  {name} " in out for name in COMMANDS)
    # The program's own code reads these variables.
    text = "\n".join(path.read_text() for name in ("utils", "data", "training") for path in Path(name).rglob("*.py"))
    read = set(re.findall(r'os\.environ(?:\.get\(|\[)"([A-Z_]+)"', text))
    shown = set(re.findall(r"(?m)^  ([A-Z_]{6,})\b", out))
    assert read - {"OMP_NUM_THREADS", "RAY_AUTH_TOKEN"} <= shown
    assert {"CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT"} <= shown
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bars.parquet").touch()
    examples = re.findall(r"(?m)^  python main\.py(.*?)(?:  .*)?$", out[places[2] : places[3]])
    assert len(examples) == 3 and all(parse(*words.split()).name == "train" for words in examples)


def test_the_short_help_fits_a_screen_and_names_the_main_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = shown_help(capsys, flag="--help")
    assert len(out.splitlines()) <= 50 < len(shown_help(capsys).splitlines())
    names = {name.split()[0] for name in COMMANDS}
    assert names == set(re.findall(r"(?m)^  ([a-z][a-z-]+)  ", out[: out.index("examples:")]))
    flags = set(re.findall(r"(?m)^  (--[a-z][a-z.-]+)", out))
    assert {"--data", "--run", "--resume", "--config", "--seed"} <= flags < all_flags("train")
    hidden = len(all_flags("train") - flags)
    assert f"--help-all shows {hidden} further flags" in out
    for command in ("features", "walk-forward", "fuel-breaks train"):
        own = {one.flag for one in known_settings(command) if one.path[0] != "settings"}
        assert own <= set(re.findall(r"--[a-z][a-z.-]+", shown_help(capsys, *command.split(), flag="-h")))


@pytest.mark.parametrize("group", sorted({name.split()[0] for name in COMMANDS if " " in name}))
def test_a_group_of_commands_has_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in COMMANDS if name.startswith(f"{group} ")]
    out = shown_help(capsys, group, flag="--help")
    assert re.findall(rf"(?m)^  ({group} [a-z]+)", out) == names
    listed = ", ".join(name.split()[1] for name in names)
    assert refusal(group) == f"expected a command of {group} ({listed}), got none; see {group} --help"
    assert "the nearest is" in refusal(group, f"{names[0].split()[1]}x")
    assert "the nearest is" not in refusal(group, "--zzz"), "no command is offered for what is none"


def test_profile_and_data_follow_what_is_there_and_what_is_named(tmp_path: Path) -> None:
    command = parse()
    assert (command.name, command.explicit, command.arguments.settings) == ("train", set(), profile_config("quick"))
    assert settings_from(cuda=True) == profile_config("full")
    assert dataclasses.replace(profile_config("full"), profile=Config().profile) == Config()
    named, default = tmp_path / "named.parquet", tmp_path / "default.parquet"
    named.touch()
    default.touch()
    assert settings_from("--data", str(named)).profile == "full"
    assert settings_from("--data", str(named), default_data=default).data == named
    by_default = parse(default_data=default)
    found = by_default.arguments.settings
    assert (found.profile, found.data, by_default.explicit) == ("full", default, frozenset())
    assert settings_from("--profile", "quick", cuda=True) == profile_config("quick")
    missing = f"expected an existing file, got '{NOT_THERE}'"
    for flag in ("--data", "--investable", "--benchmark"):
        assert f"{flag}: {missing}" in refusal(flag, str(NOT_THERE), default_data=default)


def test_the_help_lists_every_kind_of_market() -> None:
    *_, shown = help_lists("train", True).values()
    assert shown == {kind: planted.structure for kind, planted in PLANTED_KINDS.items()}


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_is_refused_with_what_took_its_place(tmp_path: Path, name: str) -> None:
    """As a flag, in a file, and by its name; runs that began with it name the version that reads them."""
    flag, path = f"--{name.replace('_', '-')}", tmp_path / "run.toml"
    expected = f"expected no {flag}, which is gone: {REMOVED[name]}; leave it out"
    assert refusal("walk-forward", flag, "3") == expected
    concern, last = name.split(".")
    for spelled in (last, last.replace("_", "-")):
        path.write_text(f"[{concern}]\n{spelled} = 3\n")
        assert refusal("--config", str(path)) == expected
    with pytest.raises(ConfigError, match=re.escape(expected)):
        from_dict({name: 3}, Config)
    run = RunLog.create(tmp_path, "one", {**to_dict(Config()), concern: {last: 3}})
    how = re.escape(checkout("0.15.0" if name in ("learning.n_steps", "learning.discount") else "0.12.0"))
    with pytest.raises(ConfigError, match=rf"one/config.json, got: .*\({name}\), which {how} reads; [^\n]*$"):
        run.settings(Config)


@settings(max_examples=20)
@given(command_lines())
def test_a_run_is_repeated_from_the_settings_in_its_folder(line: tuple[list[str], dict[str, Any]]) -> None:
    settings = parse(*line[0]).arguments.settings
    with tempfile.TemporaryDirectory() as name:
        folder = RunLog.create(Path(name), "one", to_dict(dataclasses.replace(settings, run="one"))).path
        here = dataclasses.replace(settings, run=None, runs_dir=Config().runs_dir)
        for file in ("config.toml", "config.json"):
            assert parse("--config", str(folder / file), cuda=True).arguments.settings == here
        (folder / "config.json").write_text("[1]")
        assert "expected settings of a run in" in refusal("--config", str(folder / "config.json"))


def test_flags_override_toml_which_overrides_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('generations = 7\nprofile = "full"\n[env]\ncost-bps = 2\nslippage_bps = 3.5\n')
    command = parse("--config", str(path), "--env.cost-bps", "9")
    config = command.arguments.settings
    assert config.generations == 7 and config.split == profile_config("full").split
    assert (config.env.cost_bps, config.env.slippage_bps) == (9.0, 3.5)
    assert command.explicit == {"generations", "profile", "env.cost_bps", "env.slippage_bps"}
    path.write_text("[split]\ntrain_fraction = 0.9\n")
    assert "--split.train-fraction + --split.validation-fraction <= 1" in refusal("--config", str(path))
    split = settings_from("--config", str(path), "--split.validation-fraction", "0.05").split
    assert (split.train_fraction, split.validation_fraction) == (0.9, 0.05)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("colour = 3", "'colour'; see --help"),
        ("population_size = 3", "'evolution.population_size'"),
        ("[env]\ncost_pbs = 3", "'env.cost_bps'"),
        ("generations = true", "--generations: expected INT >= 1, got True"),
        ("seed.x = 3", "'seed.x'"),
        ('[env]\nfill = "open"', "--env.fill: expected next_open|same_close, got 'open'"),
        ("generations = ", "TOML"),
    ],
)
def test_toml_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert expected in refusal("--config", str(path))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--generation 3", "'--generations'"),
        ("--tau 0.5", "'--learning.tau'"),
        ("-s 3", "'-s'"),
        ("--seed 1.5", "INT >= 0 and < 9223372036854775808, got '1.5'"),
        ("--seed --run x", "--seed: expected one argument; see --help"),
        ("--env.cost-bps nan", "--env.cost-bps: expected NUMBER >= 0 and < 10000, got"),
        ("--rivals learnd", "--rivals: expected learned|none, got 'learnd'; the nearest is 'learned'"),
        ("--verbose=no", "--verbose: ignored explicit argument"),
        ("--device gpu", "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        (
            "--run ../x",
            "--run: expected a plain folder name of up to 100 characters, which begins with no -, got '../x'",
        ),
        ("--run=-x", "which begins with no -, got '-x'"),
        (f"--run {101 * 'x'}", "of up to 100 characters"),
        ("--run a\x1bb", "expected a plain folder name"),
        ("--run x --resume", "--run or --resume"),
        ("--config no-such-file.toml", "'no-such-file.toml'"),
        ("--seed 1 2", "got '2'"),
        (f"--learning.hidden {10**30}", f"--learning.hidden: expected a number up to 10^9, got {10**30}"),
        ("prepare", "SOURCE: expected PATH, got nothing"),
        ("prepare a --keeep 3", "got '--keeep'; the nearest is '--keep'"),
        ("--synthetic.kind bursst", "got 'bursst'; the nearest is 'bursts'"),
        ("--runs-dir x signals", "expected the command before its flags, got 'signals' after flags; put it first"),
        ("--runs-dir x --scores a.csv evaluate", "got 'evaluate' after flags; put it first"),
        ("--runs-dir x paper step", "got 'paper' after flags; put it first"),
        ("trian", "'train'"),
        ("bake", "got 'bake'; see --help"),
    ],
)
def test_command_line_is_refused_in_one_line(line: str, expected: str) -> None:
    assert expected in refusal(*line.split())


def test_these_settings_may_differ_in_a_resumed_run_and_no_others() -> None:
    free = {"profile", "generations", "device", "run", "resume", "runs_dir", "keep_checkpoints"}
    free |= {"threads", "verbose", "log_to", "memory_limit_mb", "memory_report"}
    free |= {"evaluation.rivals", "evaluation.rival_refit", "evaluation.benchmark"}
    assert {name for name, setting in settings_of(Config).items() if Mark.FREE in setting.field.metadata} == free


def test_the_hash_of_settings_stays_for_checkpoints_hold_it() -> None:
    """Wherever files lie, however a number is written, and whatever may change when a run is resumed."""
    assert settings_hash(Config(data=Path("/a/bars.parquet"))) == settings_hash(Config(data=Path("b/bars.parquet")))
    assert settings_hash(Config(env=EnvironmentConfig(cost_bps=5), threads=2)) == settings_hash(Config())
    assert settings_hash(Config(seed=1)) != settings_hash(Config())
    canonical = (
        b'{"context_window_days":504,"holdout_fraction":null,"input_clip":8.0,"inputs":"all",'
        b'"max_bad_row_share":0.01,"train_fraction":0.7,"validation_fraction":0.15}'
    )
    assert settings_hash(DataConfig()) == hashlib.sha256(canonical).hexdigest()


def test_a_resumed_run_takes_free_settings_and_moved_files_only() -> None:
    saved = Config(generations=3, seed=5, data=Path("here/bars.parquet"))
    now = Config(generations=9, seed=6, threads=2, data=Path("there/bars.parquet"), resume="one")
    merged = settings_to_resume(saved, now, frozenset({"generations", "data"}))
    assert merged == dataclasses.replace(now, seed=5, threads=1)
    for name, changed_to in {"seed": 6, "data": Path("here/other.parquet")}.items():
        other = dataclasses.replace(saved, **{name: changed_to})
        with pytest.raises(ConfigError, match=f"expected {name} = .*with which the run began"):
            settings_to_resume(saved, other, frozenset({name}))
        assert settings_to_resume(saved, other, frozenset()) == saved


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_each_argument_is_and_its_default_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(setting.help.endswith(".") or "default:" in setting.help for setting in known_settings(name))
    entries = re.split(r"(?m)^  (?=-)", shown_help(capsys, *name.split()))
    assert all(entry.count("default:") <= 1 for entry in entries)


def test_settings_beside_one_that_is_named_keep_their_defaults() -> None:
    settings = parse("fuel-breaks", "train", "--env.scenarios.winds", "4").arguments.settings
    default = type(settings)()
    assert settings == with_settings(default, {"env.scenarios.winds": 4}) != default
    assert settings.env.scenarios.reward_ignitions_per_wind == default.env.scenarios.reward_ignitions_per_wind == 20


def test_dashes_of_a_file_are_those_of_flags(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[evaluation]\nrandom-pickers = 7\n\n[env]\ncost_bps = 3\n")
    assert read_settings(tmp_path / "run.toml") == {"evaluation.random_pickers": 7, "env.cost_bps": 3}

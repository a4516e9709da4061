"""Settings and the command line: precedence, names, refusals, and the list of all flags."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from data.synthetic.planted import PLANTED_KINDS
from training.commands.arguments import PrepareArguments
from training.commands.table import COMMANDS, help_lists
from utils.config.cli import ParsedCommand, parse_command
from utils.config.kinds import Mark
from utils.config.settings import (
    LATEST,
    checked_dataclass,
    flatten,
    from_dict,
    settings_hash,
    settings_of,
    settings_to_resume,
    to_dict,
    with_settings,
)
from utils.config.trader import Config, EnvironmentConfig, profile_config
from utils.errors import ConfigError

NOT_THERE = Path("no-such-folder/stock_data.parquet")

FLAG_VALUES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "--generations": ("generations", st.integers(1, 10**6)),
    "--seed": ("seed", st.integers(0, 2**63 - 1)),
    "--population-size": ("evolution.population_size", st.integers(2, 64)),
    "--learning.policy_iterations": ("learning.policy_iterations", st.integers(1, 100)),
    "--rivals": ("evaluation.rivals", st.sampled_from(["learned", "none"])),
    "--device": ("device", st.sampled_from(["auto", "cpu"])),
    "--runs-dir": ("runs_dir", st.sampled_from(["runs", "/tmp/other", "a b"])),
    "--run": ("run", st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)),
    "--env.cost-bps": ("env.cost_bps", st.floats(0, 9999)),
    "--env.fill": ("env.fill", st.sampled_from(["next_open", "same_close"])),
    "--learning.gamma": ("learning.gamma", st.floats(0, 1)),
    "--evolution.elite-fraction": ("evolution.elite_fraction", st.floats(0, 1)),
    "--learning.replay-capacity": ("learning.replay_capacity", st.integers(1, 10**7)),
}
"""A setting and its values by flag."""


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[str], dict[str, Any]]:
    """Words and the settings, by dotted name, that they mean."""
    words: list[str] = []
    meant: dict[str, Any] = {}
    for flag in draw(st.lists(st.sampled_from(sorted(FLAG_VALUES)), unique=True)):
        name, values = FLAG_VALUES[flag]
        meant[name] = draw(values)
        words += [f"{flag}={meant[name]}"] if draw(st.booleans()) else [flag, str(meant[name])]
    if draw(st.booleans()):
        meant["verbose"] = draw(st.booleans())
        words.append("--verbose" if meant["verbose"] else "--no-verbose")
    return words, meant


def parse(*argv: str, cuda: bool = False, default_data: Path = NOT_THERE) -> ParsedCommand:
    with (
        mock.patch("torch.cuda.is_available", return_value=cuda),
        mock.patch("utils.config.trader.DEFAULT_DATA", default_data),
    ):
        return parse_command(argv, COMMANDS)


def settings_from(*argv: str, **options: Any) -> Config:
    settings: Config = parse(*argv, **options).arguments.settings
    return settings


def refusal(*argv: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert re.match(r"(--[a-z.-]+|[a-z._-]+: |)\S* ?expected ", message) and ", got" in message
    return message


@given(command_lines())
def test_flags_set_what_they_name_and_nothing_else(line: tuple[list[str], dict[str, Any]]) -> None:
    words, meant = line
    command = parse(*words)
    assert command.explicit == meant.keys()
    assert flatten(to_dict(command.arguments.settings)) == flatten(to_dict(profile_config("quick"))) | meant


def all_flags(name: str) -> set[str]:
    return {flag for own in settings_of(COMMANDS[name].arguments).values() for flag in own.flags}


def test_a_new_flag_is_a_decision() -> None:
    """The flags of all commands are those listed in the files flags.txt of the tests."""
    listed: dict[str, set[str]] = {}
    for path in Path(__file__).parents[1].glob("*/flags.txt"):
        for entry in re.split(r"\n(?! )", path.read_text().strip()):
            name, _, flags = entry.partition(":")
            listed[name] = set(flags.split())
    assert {name: all_flags(name) for name in COMMANDS} == listed


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_argument_has_a_help_that_says_what_it_is(command: Any) -> None:
    for name, setting in settings_of(command.arguments).items():
        assert setting.help.endswith("."), name


def test_help_names_every_setting_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--seed", "3", "--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    shown = set(re.findall(r"(?m)^  (?:-h, )?(--[a-z][a-z.-]+)(?:, (--[a-z][a-z.-]+))?", out))
    flags = all_flags("train")
    long_spellings = {name for name in flags if "." in name and f"--{name.rpartition('.')[2]}" in flags}
    assert {"--evolution.population-size", "--learning.policy-iterations", "--evaluation.rivals"} <= long_spellings
    assert {name for pair in shown for name in pair if name} - {"--help"} == flags - long_spellings
    assert "Agents of the population. (INT >= 2; default: 16)" in out
    assert "(INT >= 2; default: 504; quick: 64)" in " ".join(out.split())
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_help_begins_with_commands_and_three_examples_that_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    out = capsys.readouterr().out
    places = [out.index(part) for part in ("usage:", "commands,", "examples:", "environment variables:", "options:")]
    assert places == sorted(places) and len(out[: places[3]].splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bars.parquet").touch()
    examples = re.findall(r"(?m)^  python main\.py(.*?)(?:  .*)?$", out[places[2] : places[3]])
    assert len(examples) == 3
    for words in examples:
        assert parse(*words.split()).name == "train"


def test_help_lists_the_environment_variables_that_the_program_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    shown = set(re.findall(r"(?m)^  ([A-Z_]{6,})\b", capsys.readouterr().out))
    folders = ("utils", "data", "environment", "models", "training")
    text = "\n".join(path.read_text() for name in folders for path in Path(name).rglob("*.py"))
    read = set(re.findall(r'os\.environ(?:\.get\(|\[)"([A-Z_]+)"|"([A-Z_]+)" not in os.environ', text))
    set_by_itself = {"OMP_NUM_THREADS", "RAY_AUTH_TOKEN", "CUBLAS_WORKSPACE_CONFIG"}
    assert {name for pair in read for name in pair if name} - set_by_itself <= shown
    assert {"CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT"} <= shown


def test_help_says_each_default_once(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "sweep", "evaluate", "fuel-breaks train"):
        with pytest.raises(SystemExit):
            parse(*command.split(), "--help")
        entries = re.split(r"(?m)^  (?=-)", capsys.readouterr().out)
        assert all(entry.count("default:") <= 1 for entry in entries)


def test_no_words_train_with_the_quick_profile() -> None:
    command = parse()
    assert command.name == "train"
    assert command.arguments.settings == profile_config("quick")
    assert command.explicit == frozenset()


def test_profile_follows_what_is_there(tmp_path: Path) -> None:
    data = tmp_path / "bars.parquet"
    data.touch()
    assert settings_from(cuda=True) == profile_config("full")
    assert settings_from("--data", str(data)).profile == "full"
    by_default = settings_from(default_data=data)
    assert (by_default.profile, by_default.data) == ("full", data)
    assert parse(default_data=data).explicit == frozenset()
    assert settings_from("--profile", "quick", cuda=True) == profile_config("quick")


def test_a_kind_of_market_that_is_named_brings_its_trading_rules() -> None:
    *_, shown = help_lists().values()
    assert shown.keys() == PLANTED_KINDS.keys()
    for kind, planted in PLANTED_KINDS.items():
        rules, config = planted.trading_rules, settings_from("--synthetic.kind", kind)
        assert config.env == with_settings(Config(), rules).env
        for name, value in rules.items():
            flag = f"--{name.replace('_', '-')}"
            assert f"(brings {flag} {value:g})" in shown[kind]
            other = settings_from("--synthetic.kind", kind, flag, "3")
            assert other.env == with_settings(config, {name: 3}).env
    assert settings_from("--synthetic.kind", "reversal").env == settings_from().env == EnvironmentConfig()


def test_named_data_wins_over_the_default_file(tmp_path: Path) -> None:
    named, default = tmp_path / "named.parquet", tmp_path / "default.parquet"
    named.touch()
    default.touch()
    assert settings_from("--data", str(named), default_data=default).data == named
    missing = str(tmp_path / "missing.parquet")
    assert missing in refusal("--data", missing, default_data=default)
    assert missing in refusal("--investable", missing, default_data=default)


def test_settings_beside_one_that_is_named_keep_their_defaults() -> None:
    settings = parse("fuel-breaks", "train", "--env.scenarios.winds", "4").arguments.settings
    default = type(settings)()
    assert settings == with_settings(default, {"env.scenarios.winds": 4}) != default
    assert settings.env.scenarios.reward_ignitions_per_wind == default.env.scenarios.reward_ignitions_per_wind == 20


def test_flags_override_toml_which_overrides_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('generations = 7\nprofile = "full"\n[env]\ncost-bps = 2\nslippage_bps = 3.5\n')
    command = parse("--config", str(path), "--env.cost-bps", "9")
    config = command.arguments.settings
    assert config.generations == 7
    assert config.split == profile_config("full").split
    assert (config.env.cost_bps, config.env.slippage_bps) == (9.0, 3.5)
    assert command.explicit == {"generations", "profile", "env.cost_bps", "env.slippage_bps"}


def test_toml_and_flags_are_validated_together(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[split]\ntrain_fraction = 0.9\n")
    assert "--split.train-fraction + --split.validation-fraction <= 1" in refusal("--config", str(path))
    config = settings_from("--config", str(path), "--split.validation-fraction", "0.05")
    assert (config.split.train_fraction, config.split.validation_fraction) == (0.9, 0.05)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("generation = 3", "'generations'"),
        ("colour = 3", "'colour'; see --help"),
        ("population_size = 3", "'evolution.population_size'"),
        ("[env]\ncost_pbs = 3", "'env.cost_bps'"),
        ("[environment]\ncost_bps = 3", "'env.cost_bps'"),
        ("generations = 3.5", "an integer for generations, got 3.5"),
        ("generations = true", "an integer for generations, got True"),
        ("env = 3", "'env'"),
        ("seed.x = 3", "'seed.x'"),
        ('[env]\nfill = "open"', "next_open or same_close for env.fill, got 'open'"),
        ("[env]\ncost_bps = inf", "a finite number for env.cost_bps"),
        ("[env]\ncost_bps = -5", "env.cost_bps: expected 0 <= NUMBER < 10000, got -5"),
        ("data = 3", "a path for data, got 3"),
        ("profile = 3", "quick or full"),
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
        ("--population 3", "'--population-size'"),
        ("--cost-bps 3", "'--env.cost-bps'"),
        ("--gamma 0.5", "'--learning.gamma'"),
        ("--env.cost_pbs=3", "'--env.cost-bps'"),
        ("-s 3", "'-s'"),
        ("--generations ten", "an integer for --generations, got 'ten'"),
        ("--seed 1.5", "an integer for --seed, got '1.5'"),
        ("--seed", "an integer after --seed, got nothing"),
        ("--seed --run x", "an integer after --seed, got nothing"),
        ("--seed -1", "--seed: expected 0 <= INT < 2^63, got -1"),
        ("--env.cost-bps=cheap", "a finite number for --env.cost-bps, got 'cheap'"),
        ("--env.cost-bps nan", "a finite number for --env.cost-bps"),
        ("--env.cost-bps -5", "--env.cost-bps: expected 0 <= NUMBER < 10000, got -5.0"),
        ("--rivals learnd", "got 'learnd'; the nearest is 'learned'"),
        ("--profile fast", "quick or full for --profile, got 'fast'"),
        ("--population-size 1", "population-size: expected INT >= 2, got 1"),
        ("--data nowhere", "--data: expected an existing file, got 'nowhere'"),
        ("--benchmark nowhere", "--benchmark: expected an existing file, got 'nowhere'"),
        ("--evolution.elite-fraction 1.5", "--evolution.elite-fraction: expected 0 <= NUMBER <= 1, got 1.5"),
        ("--synthetic.daily-noise 1e300", "--synthetic.daily-noise: expected 0 < NUMBER <= 0.1, got 1e+300"),
        ("--synthetic.drift-std 1e300", "--synthetic.drift-std: expected 0 <= NUMBER <= 0.1, got 1e+300"),
        ("--split.input-clip 1e300", "--split.input-clip: expected 0 < NUMBER <= 1000000, got 1e+300"),
        ("--verbose=no", "without a value"),
        ("--device gpu", "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("--device cuda:0", "--device: expected cpu or auto on a machine without CUDA, got 'cuda:0'"),
        ("--run ../x", "--run: expected a plain folder name, got '../x'"),
        ("--run x --resume", "--run or --resume"),
        ("--config no-such-file.toml", "'no-such-file.toml'"),
        ("--seed 1 2", "got '2'"),
        ("trian", "'train'"),
        (f"--learning.hidden {10**30}", f"--learning.hidden: expected a number up to 10^9, got {10**30}"),
        (f"--population-size {10**30}", f"--population-size: expected a number up to 10^9, got {10**30}"),
        (f"--env.max-days-without-bar {10**30}", "a number up to 10^9"),
        ("signals --cash 1e308", "--cash: expected 0 <= NUMBER <= 1000000000000000, got 1e+308"),
        ("prepaer a b", "'prepare'"),
        ("prepare", "SOURCE, got nothing"),
        ("prepare a b c", "got 'c'"),
        ("prepare a --seed 3", "got '--seed'; see --help"),
        ("--xyz 3", "got '--xyz'; see --help"),
        ("bake", "got 'bake'; see --help"),
    ],
)
def test_command_line_is_refused_in_one_line(line: str, expected: str) -> None:
    assert expected in refusal(*line.split())


@pytest.mark.parametrize(
    ("line", "resume", "generations"),
    [
        ("--resume", LATEST, profile_config("quick").generations),
        ("--resume --generations 5", LATEST, 5),
        ("--generations 5 --resume", LATEST, 5),
        ("--resume first --generations 5", "first", 5),
        ("--resume=first", "first", profile_config("quick").generations),
    ],
)
def test_resume_takes_a_name_or_none(line: str, resume: str, generations: int) -> None:
    config = settings_from(*line.split())
    assert (config.resume, config.generations) == (resume, generations)


def test_the_last_of_a_repeated_flag_counts() -> None:
    command = parse("--population-size", "4", "--evolution.population_size", "8", "--seed=2")
    assert command.arguments.settings.evolution.population_size == 8
    assert command.explicit == {"evolution.population_size", "seed"}


def test_prepare_takes_a_source_and_a_target() -> None:
    assert parse("prepare", "csv").arguments == PrepareArguments(Path("csv"), Path("data/stock_data.parquet"))
    assert parse("prepare", "csv", "out.parquet").arguments == PrepareArguments(Path("csv"), Path("out.parquet"))


@settings(max_examples=40)
@given(command_lines())
def test_dict_form_survives_json(line: tuple[list[str], dict[str, Any]]) -> None:
    config = settings_from(*line[0])
    assert from_dict(json.loads(json.dumps(to_dict(config))), Config) == config


def test_dict_form_refuses_what_is_no_setting() -> None:
    with pytest.raises(ConfigError, match=r"'env\.cost_bp'; the nearest is 'env\.cost_bps'"):
        from_dict({"env": {"cost_bp": 1.0}}, Config)
    with pytest.raises(ConfigError, match="a known setting, got 'env'"):
        from_dict({"env": 3}, Config)


def changed(flat: dict[str, Any], name: str) -> Config:
    """The settings with another valid value of one of them."""
    value, kind = flat[name], settings_of(Config)[name].kind
    if get_origin(kind) is Literal:
        others = [choice for choice in get_args(kind) if choice != value]
    elif isinstance(value, bool):
        others = [not value]
    else:
        others = ["cpu"] if value is None or isinstance(value, str) else [value + 1, value * 0.5 + 0.01]
    for other in others:
        with contextlib.suppress(ConfigError):
            return from_dict({**flat, name: other}, Config)
    raise AssertionError(f"no other value of {name}")


def test_hash_changes_with_what_shapes_results_and_nothing_else() -> None:
    base = Config()
    free = {"profile", "generations", "device", "run", "resume", "runs_dir", "keep_checkpoints", "plot_every"}
    free |= {"threads", "verbose", "census_every", "memory_limit_mb"}
    free |= {"evaluation.rivals", "evaluation.rival_refit", "evaluation.benchmark"}
    flat = flatten(to_dict(base))
    for name in flat:
        other = changed(flat, name)
        assert other != base
        assert (settings_hash(other) == settings_hash(base)) == (name in free), name


def test_hash_ignores_folders_of_files_and_how_a_number_is_written() -> None:
    def hash_of(data: str) -> str:
        return settings_hash(Config(data=Path(data)))

    assert hash_of("/a/bars.parquet") == hash_of("b/bars.parquet") != hash_of("b/other.parquet")
    assert settings_hash(Config(env=EnvironmentConfig(cost_bps=5))) == settings_hash(Config())


@checked_dataclass
class Inner:
    """Settings within others."""

    share: Annotated[float, Field(ge=0)] = 0.5


@checked_dataclass
class Outer:
    """Settings that never change."""

    file: Path | None = None
    threads: Annotated[int, Mark.FREE] = 1
    nested: Inner = dataclasses.field(default_factory=Inner)


def test_the_hash_of_settings_stays_for_checkpoints_hold_it() -> None:
    canonical = b'{"file":"bars.csv","nested.share":2.0}'
    settings = Outer(file=Path("a/bars.csv"), threads=3, nested=Inner(2))
    assert settings_hash(settings) == hashlib.sha256(canonical).hexdigest()


def test_full_profile_is_the_defaults() -> None:
    assert dataclasses.replace(profile_config("full"), profile=Config().profile) == Config()


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

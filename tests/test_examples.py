"""The scripts in examples/ run, are short, and show what they say."""

import json
import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from data.synthetic.kinds import PLANTED_KINDS
from main import main
from tests.tiny_run import tiny_in, unjudged

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "own_policy.py": r"trades +[1-9][\d.]*\n(.*\n)*.*profit_percent +-?\d",
    "judged_policy.py": r"mine +-?\d.*\n(.*\n)*mine: .*([Ss]kill|random) in .*\nsteady: ",
    "judged_ppo.py": r"PPO +-?\d.*\n(.*\n)*.*([Ss]kill|random) in ",
    "own_kind.py": r"correlation .*: (0\.9\d|1\.00)\n",
    "own_features.py": r"^$",
    "new_prices.py": r"decided at the close of \d{4}-\d\d-\d\d, for \d{4}-\d\d-\d\d.*: \d+ orders?\n",
}
"""What each prints, as a regular expression."""


def test_all_are_here_and_short() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [path.name for path in scripts] == sorted([*SHOWN, "drawn_prices.py", "optuna_settings.py"])
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 60 for path in scripts)


def test_the_notebook_runs_and_has_no_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small_heap: None
) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    exec("\n".join("".join(cell["source"]) for cell in code), {})
    plt.close("all")
    shown = capsys.readouterr().out
    assert re.search(r"([Ss]kill|random) in (.*\n)*for \d{4}-\d\d-\d\d: \d+ orders; \d+% of the differences", shown)
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()


def test_drawn_prices_are_files_to_prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, files, target = EXAMPLES / "drawn_prices.py", tmp_path / "files", tmp_path / "prices.parquet"
    monkeypatch.setattr("sys.path", sys.path[:])
    monkeypatch.setattr("sys.argv", [script.name])
    with pytest.raises(SystemExit, match="usage: "):
        runpy.run_path(str(script), run_name="__main__")
    monkeypatch.setattr("sys.argv", [script.name, str(files)])
    runpy.run_path(str(script), run_name="__main__")
    assert main(["prepare", str(files), str(target)]) == 0
    assert pd.read_parquet(target)["ticker"].value_counts().tolist() == [2500] * 30


def test_settings_are_tried_and_their_overfitting_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    from examples import optuna_settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optuna_settings, "TRIALS", 2)
    monkeypatch.setattr(optuna_settings, "SEEDS", 1)
    words = ["settings", "--config", str(tiny_in(tmp_path)), "--generations", "1", "--rivals", "none"]
    monkeypatch.setattr("sys.argv", words)
    optuna_settings.main()
    optuna_settings.main()
    shown = capsys.readouterr().out
    assert re.search(r"best: \{'mutation_strength': 0\.\d+, 'fitness_windows': \d+} [+-]\d", shown)
    assert len(list(tmp_path.glob("runs/settings/trial-*/results.json"))) == 4, "it goes on"
    assert re.search(r"note: The best of 4 results .* other half with a probability of [01]\.\d\d: judge", shown)


@pytest.mark.parametrize("name", SHOWN)
def test_examples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "judged_ppo.py":
        pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])
    monkeypatch.setattr("sys.argv", [name])
    with unjudged():
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    PLANTED_KINDS.pop("seasons", None)
    assert re.search(SHOWN[name], capsys.readouterr().out)
    assert not list(tmp_path.iterdir())

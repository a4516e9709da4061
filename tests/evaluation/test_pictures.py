"""Pictures show the numbers they were given and leave nothing behind; text says what a reader looks for."""

import copy
import math
from pathlib import Path
from typing import Any

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tests.evaluation.page_case import case
from tests.runs.test_console import RECORD, TRAINED
from training.evaluation.charts import equity_chart, fitness_chart, learning_charts
from utils import pictures as report
from utils.charts import memory_chart
from utils.tables import table


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn while the test runs."""
    drawn: list[Figure] = []

    def keep(*args: Any, **options: Any) -> Figure:
        drawn.append(Figure(*args, **options))
        return drawn[-1]

    monkeypatch.setattr(report, "Figure", keep)
    return drawn


def records(count: int) -> list[dict[str, Any]]:
    """Records of `count` generations; the first has no validation result."""
    made = [copy.deepcopy(RECORD) for _ in range(count)]
    for generation, record in enumerate(made, start=1):
        record["generation"] = generation
        record["fitness"] |= {"mean": 0.1 * generation, "max": generation, "min": -generation}
        record["validation"]["champion"] = None if generation == 1 else 2.0 * generation
    return made


def lines_of(figure: Figure) -> list[tuple[list[float], list[float]]]:
    points = [np.asarray(line.get_xydata(), dtype=np.float64) for line in figure.axes[0].lines]
    return [(pairs[:, 0].tolist(), pairs[:, 1].tolist()) for pairs in points]


def texts_of(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def is_picture(path: Path) -> bool:
    pixels = matplotlib.image.imread(path)
    return pixels.shape[0] > 400 and pixels.shape[1] > 800 and float(np.std(pixels[..., :3])) > 0.01


def test_fitness_shows_each_generation(tmp_path: Path, figures: list[Figure]) -> None:
    count = 3
    report.draw_charts([fitness_chart(records(count))], tmp_path / "fitness.png", "synthetic market")
    assert is_picture(tmp_path / "fitness.png")
    assert [path.name for path in tmp_path.iterdir()] == ["fitness.png"]
    generations = list(range(1, count + 1))
    heights = [y for x, y in lines_of(figures[0]) if x == generations]
    for expected in ([0.1 * g for g in generations], generations, [-g for g in generations]):
        assert expected in heights
    champion = next(y for y in heights if math.isnan(y[0]))
    assert champion[1:] == [2.0 * g for g in generations[1:]]
    assert "synthetic market" in texts_of(figures[0]) and "out of fold" in texts_of(figures[0])


def test_learning_shows_losses_explained_variance_and_value() -> None:
    """In the first generation nothing is trained; without networks there are no losses."""
    made = [copy.deepcopy(TRAINED) for _ in range(3)]
    for generation, record in enumerate(made, start=1):
        record["generation"] = generation
        record["learning"] |= {"initial_value": 2.0 * generation, "explained_by_both": 0.01 * generation}
        record["learning"] |= {"explained_by_ridge": 0.018, "elite_profit_percent": -0.75}
    for name in ("reward", "temporal", "actor"):
        del made[0]["learning"][f"{name}_loss"]
    *losses, explained, value = learning_charts(made)
    for chart, loss in zip(losses, (9.43786, 0.5117, -0.00321), strict=True):
        np.testing.assert_array_equal([*chart.lines.values()], [[math.nan, loss, loss]])
    np.testing.assert_allclose([*explained.lines.values()], [[1.0, 2.0, 3.0], [1.8] * 3])
    np.testing.assert_allclose([*value.lines.values()], [[2.0, 4.0, 6.0], [-0.75] * 3])
    assert [chart.title for chart in learning_charts(records(3))] == [explained.title, value.title]


def test_equity_is_drawn_as_percent_of_its_start(tmp_path: Path, figures: list[Figure]) -> None:
    evaluation = case(windows=2)
    report.draw_charts([equity_chart(evaluation)], tmp_path / "e.png")
    assert is_picture(tmp_path / "e.png")
    drawn = [y for _, y in lines_of(figures[0])]
    low, high = evaluation.random_band
    for curve in (evaluation.equity["champion"], evaluation.equity["equal weight"], low, high):
        gains = (100 * (curve / curve[0] - 1)).tolist()
        assert any(y == pytest.approx(gains) for y in drawn if len(y) == len(gains))
    end = 100 * (evaluation.equity["champion"][-1] / evaluation.equity["champion"][0] - 1)
    for expected in ("Return since the first day", "random selections, 5%", f"champion\n{end:+.1f} %", "2019-0"):
        assert expected in texts_of(figures[0])


def test_memory_shows_a_gpu_only_where_there_is_one() -> None:
    host = [("start", 0.0, 100.0, 80.0, 0.0), ("train", 600.0, 500.0, 90.0, 0.0), ("train", 1200.0, 300.0, 85.0, 0.0)]
    chart = memory_chart(host)
    assert chart.x.tolist() == [0, 10, 20] and "Peak 500 MiB, train" in chart.note
    assert {name: sizes.tolist() for name, sizes in chart.lines.items()} == {
        "resident": [100, 500, 300],
        "unique": [80, 90, 85],
    }
    assert memory_chart([(*point[:4], 2000.0) for point in host]).lines["GPU"].tolist() == [2000] * 3


cells = st.none() | st.integers(-(10**9), 10**9) | st.floats() | st.text("abc d", min_size=1, max_size=9)


@settings(deadline=None)
@given(
    st.lists(st.fixed_dictionaries({"name": st.text("xyz", min_size=1), "a": cells, "long header": cells}), max_size=5)
)
def test_table_columns_line_up(rows: list[dict[str, Any]]) -> None:
    columns = ["name", "a", "long header", "missing"]
    header, rule, *lines = table(rows, columns).split("\n")
    assert len(lines) == len(rows)
    starts = [index for index, char in enumerate(rule) if char == "-" and (index == 0 or rule[index - 1] == " ")]
    ends = [start + len(rule[start:].split(" ")[0]) for start in starts]
    assert [header[start:end].strip() for start, end in zip(starts, ends, strict=True)] == columns
    for row, line in zip(rows, lines, strict=True):
        padded = line.ljust(len(rule))
        shown = [padded[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        assert shown[0] == row["name"] and shown[3] == "-"
        for column, text in zip(("a", "long header"), shown[1:3], strict=True):
            value = row[column]
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                assert text == "-"
            elif isinstance(value, str):
                assert text == value.strip()
            else:
                assert float(text.replace(",", "")) == pytest.approx(value, abs=0.005 + 1e-12 * abs(value))

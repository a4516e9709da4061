"""Charts hold the numbers they were given, pictures draw all of them; text says what a reader looks for."""

import math
from pathlib import Path

import matplotlib.image
import matplotlib.text
import numpy as np
import pytest

from tests.evaluation.page_case import SESSIONS, case
from training.evaluation.charts import equity_chart, fitness_chart, learning_charts
from utils import pictures
from utils.charts import Chart, memory_chart
from utils.memory_profiler import Snapshot
from utils.tables import table

pytestmark = pytest.mark.usefixtures("real_charts")


def test_a_picture_shows_the_whole_chart(tmp_path: Path) -> None:
    evaluation = case(days=2 * SESSIONS)
    chart = equity_chart(evaluation)
    pictures.draw_charts([chart], tmp_path / "e.png", "synthetic market")
    assert float(np.std(matplotlib.image.imread(tmp_path / "e.png")[..., :3])) > 0.01
    assert [path.name for path in tmp_path.iterdir()] == ["e.png"]
    drawn = pictures._figure([chart], note="synthetic market")
    drawn.draw_without_rendering()
    shown = [np.asarray(line.get_ydata(), dtype=np.float64) for line in drawn.axes[0].lines]
    low, high = evaluation.random_band
    for curve in (evaluation.equity["champion"], evaluation.equity["equal weight"], low, high):
        gains = 100 * (curve / curve[0] - 1)
        assert any(len(y) == len(gains) and y == pytest.approx(gains) for y in shown)
    end = 100 * (evaluation.equity["champion"][-1] / evaluation.equity["champion"][0] - 1)
    texts = "\n".join(text.get_text() for text in drawn.findobj(matplotlib.text.Text))
    for expected in (chart.title, "random pickers, 5%", f"champion\n{end:+.1f} %", "2019-0", "synthetic market"):
        assert expected in texts


def test_a_chart_of_a_page_cuts_off_nothing_and_its_texts_do_not_overlap() -> None:
    long = Chart("word " * 20, np.arange(9), {"a long name " * 6: np.arange(9.0), "b": np.ones(9)}, note="word " * 40)
    for chart in (
        long,
        equity_chart(case(days=2 * SESSIONS)),
        fitness_chart(case().records),
    ):
        figure = pictures._figure([chart])
        figure.set_dpi(150)
        figure.draw_without_rendering()
        axes = figure.axes[0]
        texts = {" ".join(text.get_text().split()): text for text in figure.findobj(matplotlib.text.Text)}
        title, note = (texts[text.strip()].get_window_extent() for text in (chart.title, chart.note))
        box = axes.get_legend()
        assert box is not None
        legend = box.get_window_extent()
        for shown in (title, legend, note):
            assert shown.x0 >= 0 and shown.x1 <= figure.bbox.x1 and shown.y0 >= 0 and shown.y1 <= figure.bbox.y1
        assert axes.bbox.y1 <= legend.y0 + 1 and legend.y1 <= title.y0


def test_fitness_and_learning_show_each_generation() -> None:
    """In the first generation nothing is trained, and it has no validation result."""
    first = {
        "generation": 1,
        "fitness": {"mean": 0.1, "max": 1, "min": -1},
        "validation": {"champion": None},
        "learning": {"elite_profit_percent": -0.75, "risk": 0.2, "largest": 0.5, "hurdle": 2, "horizon": 3}
        | {"doubt": 0.5},
    }
    second = {
        "generation": 2,
        "fitness": {"mean": 0.2, "max": 2, "min": -2},
        "validation": {"champion": 4.0, "benchmark": 1.0},
        "learning": {"elite_profit_percent": 3, "evidence_excess": 2, "critic_loss": 9, "actor_loss": -7}
        | {"risk": 0.3, "largest": 0.6, "hurdle": 3, "horizon": 4, "doubt": 2},
    }
    fitness, *learning = fitness_chart([first, second]), *learning_charts([first, second])
    assert all(chart.x.tolist() == [1, 2] for chart in (fitness, *learning))
    np.testing.assert_array_equal([*fitness.lines.values()], [[0.1, 0.2], [math.nan, 4], [math.nan, 1]])
    np.testing.assert_array_equal([*fitness.bands.values()], [[[-1, -2], [1, 2]]])
    lines = [line for chart in learning for line in chart.lines.values()]
    genes = [[0.2, 0.3], [0.5, 0.6], [2, 3], [3, 4], [0.5, 2]]
    np.testing.assert_array_equal(lines, [[math.nan, 9], [math.nan, -7], [-0.75, 3], [math.nan, 2], *genes])


def test_memory_shows_a_gpu_only_where_there_is_one() -> None:
    def snapshot(label: str, seconds: float, resident: float, unique: float, gpu: float = 0.0) -> Snapshot:
        return Snapshot(label, 0, seconds, {"rss_mb": resident, "uss_mb": unique, "gpu_allocated_mb": gpu})

    points = (("start", 0.0, 100.0, 80.0), ("train", 600.0, 500.0, 90.0), ("train", 1200.0, 300.0, 85.0))
    chart = memory_chart([snapshot(*point) for point in points])
    assert chart.x.tolist() == [0, 10, 20] and "Peak 500 MiB, train" in chart.note
    sizes = {name: line.tolist() for name, line in chart.lines.items()}
    assert sizes == {"resident": [100, 500, 300], "unique": [80, 90, 85]}
    assert memory_chart([snapshot(*point, gpu=2000.0) for point in points]).lines["GPU"].tolist() == [2000] * 3


def test_tables_line_up() -> None:
    rows = [{"policy": "champion", "return": 1.234, "trades": 12345}, {"policy": "\x1brandom", "return": math.nan}]
    assert table(rows, ["policy", "return", "trades"]) == (
        "policy    return  trades\n--------  ------  ------\nchampion    1.23  12,345\n?random        -       -"
    )

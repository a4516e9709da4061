"""Pictures of the fuel-break experiment: learning curve, maps, and a fire as a GIF."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from PIL import Image

from data.fuel_breaks import FUEL_MODELS, Landscape
from environment.fuel_breaks.fire_spread import Hazard
from utils.arrays import BoolArray, Float64Array
from utils.charts import Chart
from utils.pictures import GREY, INK, ORANGE, VERMILION, draw_charts, new_figure, save_figure
from utils.runs.durable import new_file
from utils.runs.run_log import Records

_COVERS = {
    "": ("unburnable", "#AFC6D9"),
    "GR": ("grass", "#F7F0C6"),
    "GS": ("grass and shrub", "#E7DFA0"),
    "SH": ("shrub", "#D9C989"),
    "TU": ("timber understory", "#B7CFA0"),
    "TL": ("timber litter", "#8FB58A"),
    "SB": ("slash", "#C9B7A3"),
}
"""Label and colour of land covers, by the prefix of their fuel models' names."""
_COVER_OF_CODE = np.zeros(256, dtype=np.int64)
_COVER_OF_CODE[list(FUEL_MODELS)] = [list(_COVERS).index(model.name[:2]) for model in FUEL_MODELS.values()]
_BREAK, _BURNED, _CONTOUR = "#1A1A1A", "#5B4A4A", "#6E5B43"
_MIN_RELIEF_M = 20.0  # flatter ground is drawn without contour lines
_FRONT_MINUTES = 10.0
_FRAMES = 25
_SIDES = "without breaks", "with the network's breaks"


def draw_learning(records: Records, path: Path, note: str) -> None:
    """Write a PNG of the reduction of the burned area on validation tiles over the episodes played."""
    names = {
        "network": "agent",
        "best network so far": "best",
        "adaptive downstream value": "adaptive_downstream_value",
    }
    curves = {label: np.array([record["validation"][name] for record in records]) for label, name in names.items()}
    curves["exploring, on training tiles"] = np.array([record["return_percent"] for record in records], np.float64)
    episodes = np.array([record["episodes"] for record in records])
    chart = Chart("Reduction of the burned area, %, by episodes played", episodes, curves, "{:.1f} %", has_zero=False)
    draw_charts([chart], path, note, "Learning to place fuel breaks")


def draw_breaks(
    landscape: Landscape, placements: Mapping[str, tuple[BoolArray, float]], path: Path, title: str, note: str
) -> None:
    """Write a PNG with a map for each policy: land cover, contours, (cells,) cleared and the reduction in percent."""
    columns = min(4, len(placements))
    rows = -(-len(placements) // columns)
    figure = new_figure(3.3 * columns + 2.1, 3.45 * rows + 0.9, title, note)
    for place, (name, (cleared, reduction)) in enumerate(placements.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        _ground(axes, landscape)
        _breaks(axes, cleared.reshape(landscape.shape))
        _map_title(axes, name, f"burned area {-reduction:+.1f} %")
    covers = [list(_COVERS.values())[number] for number in np.unique(_cover(landscape))]
    handles = [Patch(facecolor=colour, edgecolor=GREY, linewidth=0.5, label=label) for label, colour in covers]
    handles.append(Patch(facecolor=_BREAK, edgecolor="white", label="cleared cell"))
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9, title=_scale(landscape))
    save_figure(figure, path)


def draw_burn_probability(
    landscape: Landscape, arrivals: Sequence[Float64Array], cleared: BoolArray, path: Path, title: str, note: str
) -> None:
    """Write a PNG of the share of fires that burn each cell, by their (F, cells) arrivals without and with breaks."""
    shares = [100 * np.isfinite(arrival).mean(axis=0) for arrival in arrivals]
    figure = new_figure(9.6, 5.2, title, note)
    grid = figure.subplots(1, 2)
    for axes, name, share in zip(grid, _SIDES, shares, strict=True):
        image = axes.imshow(share.reshape(landscape.shape), cmap="cividis", vmin=0, vmax=float(shares[0].max()))
        _map_title(axes, name, f"mean {share.mean():.1f} %")
    _breaks(grid[1], cleared.reshape(landscape.shape), colour="white")
    figure.colorbar(image, ax=grid, shrink=0.75, location="bottom", label="Fires that burn the cell, %")
    grid[0].set_xlabel(_scale(landscape), fontsize=9)
    save_figure(figure, path)


def draw_fire(
    landscape: Landscape,
    judging: Hazard,
    arrivals: Sequence[Float64Array],
    cleared: BoolArray,
    path: Path,
    title: str,
    note: str,
) -> None:
    """Write a GIF of one fire without (left) and with breaks: a large one, reduced about as much as all."""
    before, after = (np.isfinite(arrival).sum(axis=1) for arrival in arrivals)
    distance = np.abs(1 - after / np.maximum(before, 1) - (1 - after.sum() / before.sum()))
    fire = int(np.where(before >= before.mean(), distance, np.inf).argmin())
    figure, sides = new_figure(9.6, 5.2, title, note, dpi=80), []
    left, right = grid = figure.subplots(1, 2)
    for axes, name, every in zip(grid, _SIDES, arrivals, strict=True):
        arrival = every[fire].reshape(landscape.shape)
        _ground(axes, landscape)
        row, column = np.unravel_index(int(arrival.argmin()), arrival.shape)
        axes.plot(column, row, "*", color=ORANGE, markeredgecolor=INK, markersize=13, zorder=6)
        sides.append((axes, name, arrival, axes.imshow(np.zeros((*arrival.shape, 4)), interpolation="nearest")))
    _breaks(right, cleared.reshape(landscape.shape))
    left.set_xlabel(_scale(landscape), fontsize=9)
    wind = judging.winds[judging.wind_of_fire[fire]]
    right.set_xlabel(f"wind of {wind.speed_km_h:.0f} km/h from {wind.from_degrees:.0f} degrees", fontsize=9)
    handles = [
        Patch(color=ORANGE, label="ignition (star)"),
        Patch(color=VERMILION, label=f"reached in the last {_FRONT_MINUTES:.0f} min"),
        Patch(color=_BURNED, label="burned"),
        Patch(color=_BREAK, label="cleared cell"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    images = []
    for minute in np.linspace(0, judging.duration_minutes, _FRAMES).tolist():
        for axes, name, arrival, flames in sides:
            is_burned = arrival <= minute
            colours = np.zeros((*arrival.shape, 4))
            colours[is_burned] = (*to_rgb(_BURNED), 0.85)
            colours[is_burned & (arrival > minute - _FRONT_MINUTES)] = (*to_rgb(VERMILION), 0.95)
            flames.set_data(colours)
            hectares = int(is_burned.sum()) * landscape.cell_size_m**2 / 10_000
            _map_title(axes, name, f"{minute:.0f} min: {hectares:.1f} ha burned")
        figure.canvas.draw()
        figure.set_layout_engine("none")  # all frames keep the layout of the first
        images.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB"))  # type: ignore[attr-defined]
    # One palette for all frames, or colours would flicker.
    palette = images[-1].convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    indexed = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [160] * (_FRAMES - 1) + [2500]
    with new_file(path) as file:
        indexed[0].save(file, format="GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0)


def _cover(landscape: Landscape) -> NDArray[np.int64]:
    return np.where(landscape.burnable, _COVER_OF_CODE[landscape.fuel_model], 0)


def _scale(landscape: Landscape) -> str:
    rows, columns = landscape.shape
    return f"north is up; {columns} x {rows} cells of {landscape.cell_size_m:g} m"


def _ground(axes: Axes, landscape: Landscape) -> None:
    """Draw land cover, and contours unless the ground is flat."""
    colours = np.array([to_rgb(colour) for _, colour in _COVERS.values()])
    axes.imshow(colours[_cover(landscape)], interpolation="nearest")
    if np.ptp(landscape.elevation_m) >= _MIN_RELIEF_M:
        axes.contour(landscape.elevation_m, levels=10, colors=_CONTOUR, linewidths=0.5, alpha=0.7)


def _breaks(axes: Axes, cleared: BoolArray, colour: str = _BREAK) -> None:
    for row, column in np.argwhere(cleared).tolist():
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.5, zorder=5))


def _map_title(axes: Axes, name: str, detail: str) -> None:
    axes.set_title(f"{name}\n{detail}", fontsize=10, color=INK, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(GREY)

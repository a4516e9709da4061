"""Pictures of the fuel-break experiment: learning curves, the comparison of policies, maps, and one fire as a GIF."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from PIL import Image

from utils.pictures import BLUE, GREY, INK, ORANGE, VERMILION, outside_legend, picture, save_figure

Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

COVERS = ("unburnable", "grass", "grass and shrub", "shrub", "timber understory", "timber litter", "slash")
"""Kinds of ground, by number."""
_COVER_COLOURS = ("#AFC6D9", "#F7F0C6", "#E7DFA0", "#D9C989", "#B7CFA0", "#8FB58A", "#C9B7A3")
_BREAK, _BURNED = "#1A1A1A", "#5B4A4A"
_DPI = 150
_FRONT_MINUTES = 10.0


@dataclass(frozen=True)
class TileMap:
    """What the maps of a tile have in common; arrays are (rows, columns), row 0 is north, column 0 west."""

    cover: NDArray[np.integer[Any]]
    """Numbers of `COVERS`."""
    elevation_m: NDArray[np.float32]
    cell_size_m: float

    @property
    def cell_hectares(self) -> float:
        """Area of a cell."""
        return self.cell_size_m**2 / 10_000

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """West, east, south and north edge, metres from the south-west corner."""
        rows, columns = self.cover.shape
        return 0.0, columns * self.cell_size_m, 0.0, rows * self.cell_size_m


@dataclass(frozen=True)
class Placement:
    """The breaks of one policy on a tile."""

    name: str
    cleared: BoolArray
    """(rows, columns)"""
    reduction_percent: float
    burn_probability: Float64Array
    """(rows, columns) share of the judging fires that burn each cell, breaks in place."""


@dataclass(frozen=True)
class FirePair:
    """One fire without and with breaks: (rows, columns) arrival in minutes, infinite where it does not come."""

    without: Float64Array
    with_breaks: Float64Array
    cleared: BoolArray
    duration_minutes: float
    wind_km_h: float
    wind_from_degrees: float


def draw_learning(records: Sequence[Mapping[str, Any]], path: Path, note: str | None = None) -> None:
    """Write a PNG of the reduction of the burned area on validation tiles over the episodes played."""
    episodes = [record["episodes"] for record in records]
    with picture(path, "Learning to place fuel breaks", note) as (figure, axes):
        for name, label, colour, style in (
            ("agent", "network", BLUE, "-"),
            ("best", "best network so far", BLUE, ":"),
            ("adaptive_downstream_value", "adaptive downstream value", VERMILION, "--"),
        ):
            values = [record["validation"][name] for record in records]
            axes.plot(
                episodes, values, style, color=colour, label=f"{label}\n{values[-1]:.1f} %", marker="o", markersize=3
            )
        returns = np.array([record["return_percent"] for record in records], dtype=np.float64)  # None becomes NaN
        axes.plot(episodes, returns, "-.", color=GREY, label=f"exploring, on training tiles\n{returns[-1]:.1f} %")
        axes.set_xlabel("Episodes played")
        axes.set_ylabel("Reduction of the burned area, %")
        outside_legend(figure, axes)


def draw_comparison(reductions: Mapping[str, Float64Array], path: Path, title: str, note: str | None = None) -> None:
    """Write a PNG with a dot for each tile's reduction, and the mean with its 95% interval, by policy."""
    order = sorted(reductions, key=lambda name: float(reductions[name].mean()))
    with picture(path, title, note) as (_, axes):
        for row, name in enumerate(order):
            values = reductions[name]
            # Dots beside one another by their order: no draw of random numbers, and the same picture every time.
            heights = row + 0.28 * (np.argsort(np.argsort(values)) % 7 - 3) / 3
            first = name == next(iter(reductions))
            axes.plot(values, heights, "o", color=BLUE if first else GREY, markersize=3, alpha=0.45)
            error = 1.96 * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            axes.errorbar(values.mean(), row, xerr=error, fmt="D", color=INK, markersize=5, capsize=4, zorder=4)
            axes.text(
                values.mean(), row + 0.36, f"{values.mean():.1f}", ha="center", va="bottom", fontsize=9, color=INK
            )
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(-0.6, len(order) - 0.2)
        axes.set_xlabel("Reduction of the burned area, %: one dot a tile, diamond: mean and 95 % interval")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)


def draw_breaks(tile: TileMap, placements: Sequence[Placement], path: Path, title: str, note: str | None) -> None:
    """Write a PNG with a map for each policy: ground, contours and the cells that it cleared."""
    columns = min(4, len(placements))
    rows = -(-len(placements) // columns)
    figure = _figure(3.3 * columns + 2.1, 3.45 * rows + 0.9, title, note)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, placement in zip(grid, placements, strict=False):
        _ground(axes, tile)
        _breaks(axes, tile, placement.cleared)
        _map_title(axes, placement.name, f"burned area {-placement.reduction_percent:+.1f} %")
    for axes in grid[len(placements) :]:
        axes.set_visible(False)
    _north_and_scale(grid[0], tile)
    figure.legend(handles=_ground_legend(tile), loc="outside right upper", frameon=False, fontsize=9)
    save_figure(figure, path)


def draw_burn_probability(
    tile: TileMap, before: Float64Array, placements: Sequence[Placement], path: Path, title: str, note: str | None
) -> None:
    """Write a PNG of the share of fires that burn each cell: without breaks, with them, and the decrease."""
    first = placements[0]
    maps = [("no breaks", before, None), *((p.name, p.burn_probability, p.cleared) for p in placements)]
    columns = len(maps) + 1
    figure = _figure(3.4 * columns + 1.2, 4.6, title, note)
    grid = figure.subplots(1, columns)
    highest = 100 * float(before.max())
    for axes, (name, probability, cleared) in zip(grid, maps, strict=False):
        image = axes.imshow(100 * probability, cmap="cividis", vmin=0, vmax=highest, extent=tile.extent)
        _map_title(axes, name, f"mean {100 * probability.mean():.1f} %")
        if cleared is not None:
            _breaks(axes, tile, cleared, colour="white")
    figure.colorbar(image, ax=list(grid[:-1]), shrink=0.75, location="bottom", label="Fires that burn the cell, %")
    saved = 100 * (before - first.burn_probability)
    change = grid[-1].imshow(saved, cmap="Purples", vmin=0, vmax=max(float(saved.max()), 1e-9), extent=tile.extent)
    _breaks(grid[-1], tile, first.cleared, colour=VERMILION)
    _map_title(grid[-1], f"saved by the {first.name}", f"mean {saved.mean():.1f} points")
    figure.colorbar(change, ax=grid[-1], shrink=0.9, location="bottom", label="Decrease, percentage points")
    _north_and_scale(grid[0], tile, colour="white")
    save_figure(figure, path)


def draw_fire(tile: TileMap, fire: FirePair, path: Path, title: str, frames: int = 25, note: str | None = None) -> None:
    """Write a GIF of one fire without breaks (left) and with them (right), the last frame held."""
    moments = np.linspace(0, fire.duration_minutes, frames)
    images = [_fire_frame(tile, fire, float(minute), title, note) for minute in moments]
    # One palette for all frames, or colours would flicker.
    palette = images[-1].convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    indexed = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    temporary = path.with_name(f".{path.name}.tmp")
    durations = [160] * (frames - 1) + [2500]
    indexed[0].save(temporary, format="GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0)
    temporary.replace(path)


def _fire_frame(tile: TileMap, fire: FirePair, minute: float, title: str, note: str | None) -> Image.Image:
    figure = _figure(9.6, 5.2, title, note, dpi=80)
    grid = figure.subplots(1, 2)
    sides = (("without breaks", fire.without, None), ("with the network's breaks", fire.with_breaks, fire.cleared))
    for axes, (name, arrival, cleared) in zip(grid, sides, strict=True):
        _ground(axes, tile)
        _flames(axes, tile, arrival, minute)
        _breaks(axes, tile, np.zeros_like(fire.cleared) if cleared is None else cleared)
        burned = int((arrival <= minute).sum())
        _map_title(axes, name, f"{minute:.0f} min: {burned * tile.cell_hectares:.1f} ha burned")
    _north_and_scale(grid[0], tile)
    _wind_arrow(grid[1], tile, fire)
    handles: list[Any] = [
        Line2D([], [], linestyle="", marker="*", color=ORANGE, markeredgecolor=INK, markersize=11, label="ignition"),
        Patch(color=VERMILION, label=f"reached in the last {_FRONT_MINUTES:.0f} min"),
        Patch(color=_BURNED, label="burned"),
        _break_handle(),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=4, frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return Image.open(buffer).convert("RGB")


def _flames(axes: Axes, tile: TileMap, arrival: Float64Array, minute: float) -> None:
    picture_of_fire = np.zeros((*arrival.shape, 4))
    is_burned = arrival <= minute
    picture_of_fire[is_burned] = (*to_rgb(_BURNED), 0.85)
    picture_of_fire[is_burned & (arrival > minute - _FRONT_MINUTES)] = (*to_rgb(VERMILION), 0.95)
    axes.imshow(picture_of_fire, extent=tile.extent, interpolation="nearest")
    row, column = np.unravel_index(int(arrival.argmin()), arrival.shape)
    x, y = _centre(tile, int(row), int(column))
    axes.plot(x, y, marker="*", color=ORANGE, markersize=13, markeredgecolor=INK, markeredgewidth=0.8, zorder=6)


def _ground(axes: Axes, tile: TileMap) -> None:
    colours = ListedColormap(_COVER_COLOURS)
    norm = BoundaryNorm(np.arange(len(COVERS) + 1) - 0.5, len(COVERS))
    axes.imshow(tile.cover, cmap=colours, norm=norm, extent=tile.extent, interpolation="nearest")
    rows, columns = tile.cover.shape
    x = (np.arange(columns) + 0.5) * tile.cell_size_m
    y = (rows - np.arange(rows) - 0.5) * tile.cell_size_m
    if float(np.ptp(tile.elevation_m)) >= 20:
        axes.contour(x, y, tile.elevation_m, levels=_contour_levels(tile), colors="#6E5B43", linewidths=0.5, alpha=0.7)


def _contour_levels(tile: TileMap) -> Float64Array:
    step = contour_step(tile.elevation_m)
    low, high = float(tile.elevation_m.min()), float(tile.elevation_m.max())
    return np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step


def contour_step(elevation_m: NDArray[np.float32]) -> float:
    """Metres between contour lines, such that a tile shows about ten."""
    return next((step for step in (5.0, 10.0, 20.0, 50.0) if float(np.ptp(elevation_m)) / step <= 12), 100.0)


def _breaks(axes: Axes, tile: TileMap, cleared: BoolArray, colour: str = _BREAK) -> None:
    for row, column in np.argwhere(cleared):
        x, y = column * tile.cell_size_m, (cleared.shape[0] - 1 - row) * tile.cell_size_m
        size = tile.cell_size_m
        axes.add_patch(_square(float(x), float(y), size, colour))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(GREY)


def _square(x: float, y: float, size: float, colour: str) -> Rectangle:
    return Rectangle((x, y), size, size, facecolor=colour, edgecolor="white", linewidth=0.5, zorder=5)


def _centre(tile: TileMap, row: int, column: int) -> tuple[float, float]:
    return (column + 0.5) * tile.cell_size_m, (tile.cover.shape[0] - row - 0.5) * tile.cell_size_m


def _map_title(axes: Axes, name: str, detail: str) -> None:
    axes.set_title(f"{name}\n{detail}", fontsize=10, color=INK, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(GREY)


def _north_and_scale(axes: Axes, tile: TileMap, colour: str = INK) -> None:
    """A north arrow in the upper right corner and a scale bar in the lower left one."""
    west, east, south, north = tile.extent
    width, height = east - west, north - south
    backing = {
        "boxstyle": "round,pad=0.15",
        "facecolor": "white" if colour == INK else "#00000088",
        "edgecolor": "none",
        "alpha": 0.75,
    }
    axes.annotate(
        "N",
        (0.94, 0.965),
        (0.94, 0.81),
        xycoords="axes fraction",
        ha="center",
        va="center",
        fontsize=10,
        color=colour,
        weight="bold",
        bbox=backing,
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.4},
        zorder=8,
    )
    metres = next((m for m in (50, 100, 200, 500, 1000, 2000, 5000) if m >= width / 5), 10_000)
    x, y = west + 0.05 * width, south + 0.045 * height
    axes.plot([x, x + metres], [y, y], color=colour, linewidth=3, solid_capstyle="butt", zorder=8)
    axes.text(
        x + metres / 2,
        y + 0.025 * height,
        f"{metres:g} m",
        ha="center",
        va="bottom",
        fontsize=8,
        color=colour,
        zorder=8,
        bbox=backing,
    )


def _wind_arrow(axes: Axes, tile: TileMap, fire: FirePair) -> None:
    """Where the wind blows to, in the lower right corner."""
    angle = np.deg2rad(fire.wind_from_degrees + 180)
    x, y, reach = 0.87, 0.165, 0.075
    axes.annotate(
        "",
        (x + reach * np.sin(angle), y + reach * np.cos(angle)),
        (x - reach * np.sin(angle), y - reach * np.cos(angle)),
        xycoords="axes fraction",
        arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 2.4, "mutation_scale": 18},
        zorder=8,
    )
    axes.text(
        x,
        0.025,
        f"wind {fire.wind_km_h:.0f} km/h",
        transform=axes.transAxes,
        ha="center",
        va="bottom",
        fontsize=8,
        color=BLUE,
        zorder=8,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
    )


def _ground_legend(tile: TileMap) -> list[Any]:
    present = [number for number in range(len(COVERS)) if (tile.cover == number).any()]
    handles: list[Any] = [
        Patch(facecolor=_COVER_COLOURS[n], edgecolor=GREY, linewidth=0.5, label=COVERS[n]) for n in present
    ]
    if float(np.ptp(tile.elevation_m)) >= 20:
        step = contour_step(tile.elevation_m)
        handles.append(Line2D([], [], color="#6E5B43", linewidth=0.8, label=f"contours, every {step:g} m"))
    return [*handles, _break_handle()]


def _break_handle() -> Any:
    return Patch(facecolor=_BREAK, edgecolor="white", label="cleared cell")


def _figure(width: float, height: float, title: str, note: str | None, dpi: int = _DPI) -> Figure:
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
    if note:
        figure.supxlabel(note, fontsize=8, color=INK, style="italic", x=0.01, ha="left")
    return figure

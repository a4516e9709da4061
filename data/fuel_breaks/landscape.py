"""Landscapes as rasters: read or generated, cut into tiles, and split so that tiles of different splits never touch.

Row 0 is the north edge, column 0 the west edge; an aspect is the downslope direction, degrees clockwise from north.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from data.fuel_breaks.config import TileConfig
from data.fuel_breaks.fuel_models import (
    BARE_GROUND_FUEL_MODEL,
    FUEL_MODELS,
    UNBURNABLE_FUEL_MODELS,
    WATER_FUEL_MODEL,
)
from utils.errors import DataError

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

DEFAULT_CELL_SIZE_M = 30.0
RANGES = {
    "slope_percent": (0, 1000),
    "aspect_degrees": (-1, 360),
    "elevation_m": (-500, 9000),
    "canopy_cover_percent": (0, 100),
    "fuel_model": (0, 255),
}
"""Least and greatest value of each required band, by field of `Landscape` and name in a file."""
_RELIEF_M = 350.0
_WATER_SHARE = 0.06
_FUELS = (102, 122, 165, 186, 189, 183)  # from open and dry to closed: grass, grass and shrub, understory, litter
_FUEL_SHARES = (0.08, 0.10, 0.14, 0.34, 0.14, 0.20)
_CANOPY_PERCENT = (5.0, 15.0, 60.0, 75.0, 70.0, 85.0)


@dataclass(frozen=True)
class Landscape:
    """A landscape, or a window of one: read-only arrays of one shape (rows, columns)."""

    slope_percent: Float32Array
    aspect_degrees: Float32Array  # -1 where the ground is flat
    elevation_m: Float32Array
    canopy_cover_percent: Float32Array
    fuel_model: NDArray[np.uint8]  # codes of `data.fuel_breaks.fuel_models`
    valid: NDArray[np.bool_]
    burnable: NDArray[np.bool_]  # valid cells whose fuel model burns
    cell_size_m: float

    def __post_init__(self) -> None:
        for array in self.arrays().values():
            array.setflags(write=False)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.fuel_model.shape
        return rows, columns

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def window(self, row: int, column: int, rows: int, columns: int) -> Self:
        """Return the part whose north-west cell is given, as views of the same memory."""
        part: Any = np.s_[row : row + rows, column : column + columns]
        return replace(self, **{name: array[part] for name, array in self.arrays().items()})


@dataclass(frozen=True)
class Tile:
    """A square window of a landscape, and the row and column of its north-west cell."""

    row: int
    column: int
    landscape: Landscape


def load_landscape(path: Path) -> Landscape:
    """Read a landscape from an `.npz` file or a folder of GeoTIFF bands, named as in `RANGES` (`slope_percent.tif`).

    An `.npz` may hold `valid` (bool) and `cell_size_m`; in GeoTIFFs a cell without data in any band is not valid.
    Raises DataError if it cannot be read, or a band is missing, of another shape or out of range.
    """
    if path.is_dir():
        return landscape_from_bands(_read_geotiffs(path), str(path))
    try:
        with np.load(path, allow_pickle=False) as stored:
            return landscape_from_bands(dict(stored), str(path))
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        expected = "a landscape as .npz or a folder of GeoTIFF bands"
        raise DataError(f"expected {expected}, got {str(path)!r} ({error})") from None


def _read_geotiffs(folder: Path) -> dict[str, NDArray[Any]]:
    try:
        import rasterio
    except ImportError:
        raise DataError(f"expected rasterio to read {folder}, got no such package; pip install rasterio") from None
    bands: dict[str, NDArray[Any]] = {}
    for name in RANGES:
        path = folder / f"{name}.tif"
        if not path.is_file():
            raise DataError(
                f"expected the band {path.name} in {folder}, got {sorted(p.name for p in folder.iterdir())}"
            )
        with rasterio.open(path) as source:
            bands[name], (width, height) = source.read(1, masked=True), source.res
        if not np.isclose(width, height, rtol=1e-3):
            raise DataError(f"expected square cells in {path}, got {width:g} x {height:g}; project it to a metric grid")
        bands["cell_size_m"] = np.array(float(width))
    return bands


def landscape_from_bands(stored: Mapping[str, NDArray[Any]], source: str) -> Landscape:
    """Build a landscape from bands, whose masked cells are not valid; DataError, naming `source`, if it cannot."""
    missing = [name for name in RANGES if name not in stored]
    if missing:
        raise DataError(f"expected the bands {', '.join(missing)} in {source}, got {', '.join(sorted(stored))}")
    shape = stored["fuel_model"].shape
    valid = np.asarray(stored.get("valid", np.ones(shape)), dtype=np.bool_)
    for name, array in {"valid": valid, **{name: stored[name] for name in RANGES}}.items():
        if array.ndim != 2 or array.shape != shape or not array.size:
            raise DataError(f"expected bands of one shape (rows, columns) in {source}, got {array.shape} for {name}")
    cell_size_m = float(stored.get("cell_size_m", DEFAULT_CELL_SIZE_M))
    if not 1 <= cell_size_m <= 1000:
        raise DataError(f"expected cells of 1 to 1000 m in {source}, got {cell_size_m:g}; give a metric grid")
    for name in RANGES:
        valid = valid & ~np.ma.getmaskarray(stored[name])
    bands = {name: _checked_band(name, stored[name], valid, source) for name in RANGES}
    fuel = bands.pop("fuel_model")
    is_known = np.isin(fuel, [*FUEL_MODELS, *UNBURNABLE_FUEL_MODELS])
    if not is_known[valid].all():
        unknown = np.unique(fuel[valid & ~is_known])[:5].tolist()
        raise DataError(f"expected fuel models of Scott and Burgan (91-99, 101-204) in {source}, got {unknown}")
    codes = np.where(valid, fuel, BARE_GROUND_FUEL_MODEL).astype(np.uint8)
    burnable = valid & np.isin(codes, list(FUEL_MODELS))
    # LANDFIRE gives gentle slopes no aspect; the fire model needs one wherever there is a slope.
    is_unknown = valid & (bands["aspect_degrees"] < 0) & (bands["slope_percent"] > 0)
    if is_unknown.any():
        _, computed = slope_and_aspect(np.where(valid, bands["elevation_m"], np.float32(np.nan)), cell_size_m)
        bands["aspect_degrees"] = np.where(is_unknown, computed, bands["aspect_degrees"])
    return Landscape(**bands, fuel_model=codes, valid=valid.copy(), burnable=burnable, cell_size_m=cell_size_m)


def _checked_band(name: str, stored: NDArray[Any], valid: NDArray[np.bool_], source: str) -> Float32Array:
    """Return a band as float32, 0 in invalid cells. Raises DataError if a value is out of range."""
    low, high = RANGES[name]
    values = np.where(valid, np.asarray(stored, np.float32), np.float32(0))
    is_wrong = valid & ~((values >= low) & (values <= high))
    if is_wrong.any():
        raise DataError(
            f"expected {name} from {low} to {high} in {source}, got {values[is_wrong][0]:g} and "
            f"{is_wrong.sum() - 1} other values; mark cells without data as not valid"
        )
    return np.asarray(values, dtype=np.float32)


def slope_and_aspect(elevation_m: Float32Array, cell_size_m: float) -> tuple[Float32Array, Float32Array]:
    """Return slope in percent and aspect in degrees, by differences that are one-sided beside edges and NaN."""
    southward, eastward = (_gradient(elevation_m, axis) / cell_size_m for axis in (0, 1))
    slope = 100 * np.hypot(southward, eastward)
    # Downslope is against the gradient: east component -eastward, north component +southward.
    aspect = np.rad2deg(np.arctan2(-eastward, southward)) % 360.0
    return slope.astype(np.float32), aspect.astype(np.float32)


def _gradient(values: Float32Array, axis: int) -> Float64Array:
    """Return the change per cell along an axis: the mean of the known steps to it and from it."""
    steps = np.diff(values.astype(np.float64), axis=axis)
    nothing = np.full_like(values.take([0], axis=axis), np.nan, dtype=np.float64)
    both = np.stack([np.concatenate((nothing, steps), axis), np.concatenate((steps, nothing), axis)])
    known = np.isfinite(both)
    return np.asarray(np.where(known, both, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


def generated_landscape(seed: int, rows: int = 400, columns: int = 240) -> Landscape:
    """Draw a landscape of 30 m cells: fractal elevation, water in the lowest ground, and patches of `_FUELS`."""
    for_elevation, for_fuel = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(2)
    )
    elevation = np.rint(200 + _RELIEF_M * _fractal(rows, columns, 2.2, for_elevation))
    slope, aspect = slope_and_aspect(elevation, DEFAULT_CELL_SIZE_M)
    kind = np.searchsorted(np.cumsum(_FUEL_SHARES)[:-1], _fractal(rows, columns, 1.4, for_fuel))
    is_water = elevation <= np.quantile(elevation, _WATER_SHARE)
    return landscape_from_bands(
        {
            "slope_percent": np.where(is_water, 0.0, np.rint(slope)),
            "aspect_degrees": np.where(is_water | (np.rint(slope) == 0), -1.0, np.rint(aspect) % 360),
            "elevation_m": elevation,
            "canopy_cover_percent": np.where(is_water, 0.0, np.array(_CANOPY_PERCENT)[kind]),
            "fuel_model": np.where(is_water, WATER_FUEL_MODEL, np.array(_FUELS)[kind]),
        },
        f"the built-in landscape of seed {seed}",
    )


def _fractal(rows: int, columns: int, roughness: float, generator: np.random.Generator) -> Float64Array:
    """Draw noise with an amplitude of frequency to the power -`roughness`, as ranks spread evenly over [0, 1)."""
    size = 2 * max(rows, columns)  # cut from a larger field, since a Fourier sum repeats at its edges
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(generator.standard_normal((size, size))) * frequency**-roughness
    field = np.fft.irfft2(noise, s=(size, size))[:rows, :columns]
    return np.asarray((rankdata(field, "ordinal") - 1).reshape(rows, columns) / field.size)


def cut_tiles(landscape: Landscape, config: TileConfig) -> list[Tile]:
    """Cut a landscape into disjoint tiles, by row, then by column, without those of which too little burns."""
    size = config.tile_cells
    rows, columns = landscape.shape
    corners = [(r, c) for r in range(0, rows - size + 1, size) for c in range(0, columns - size + 1, size)]
    tiles = (Tile(row, column, landscape.window(row, column, size, size)) for row, column in corners)
    return [tile for tile in tiles if tile.landscape.burnable.mean() >= config.min_burnable_share]


def split_tiles(tiles: Sequence[Tile], config: TileConfig) -> dict[str, list[Tile]]:
    """Split tiles from north to south, with rows left out in between: neighbours share terrain. Raises DataError."""
    ends = [config.train_fraction, config.train_fraction + config.validation_fraction]
    starts = sorted(tile.row for tile in tiles)
    gap = config.buffer_rows * config.tile_cells
    # Rows of tiles stay together.
    cuts = [starts[min(int(end * len(starts)), len(starts) - 1)] for end in ends] if starts else [0, 0]
    splits = {
        "train": [tile for tile in tiles if tile.row < cuts[0]],
        "validation": [tile for tile in tiles if cuts[0] + gap <= tile.row < cuts[1]],
        "test": [tile for tile in tiles if tile.row >= cuts[1] + gap],
    }
    if empty := [name for name, part in splits.items() if not part]:
        raise DataError(
            f"expected tiles for training, validation and test, got none for {', '.join(empty)} ({len(tiles)} in all); "
            "give a larger landscape, or lower min-burnable-share or buffer-rows"
        )
    return splits

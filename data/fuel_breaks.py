"""Landscapes as rasters: read or generated, cut into tiles, and split so that tiles of different splits never touch.

Row 0 is the north edge, column 0 the west edge; an aspect is the downslope direction, degrees clockwise from north.

Fuel models are the forty standard ones of Scott and Burgan (2005).
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from utils.arrays import BoolArray, Float32Array, Float64Array
from utils.config.fuel_breaks import TileConfig
from utils.errors import DataError

UNBURNABLE = (91, 92, 93, 98, 99)  # urban, snow or ice, agriculture, water, bare ground
WATER, BARE_GROUND = 98, 99


@dataclass(frozen=True)
class FuelModel:
    """A fuel model in its published units."""

    name: str
    load_1h: float  # loads in short tons per acre: dead fuel by time lag, live herbaceous and live woody
    load_10h: float
    load_100h: float
    load_herbaceous: float
    load_woody: float
    sav_1h: float  # surface-area-to-volume ratios in square feet per cubic foot; 0 if the model has no such fuel
    sav_herbaceous: float
    sav_woody: float
    depth_ft: float
    extinction_moisture_percent: float  # of dead fuel
    heat_btu_lb: float


_TABLE = pd.read_csv(Path(__file__).with_name("fuel_models.csv"), index_col="code")
FUEL_MODELS = {code: FuelModel(*values) for code, *values in _TABLE.itertuples()}
"""By code. Source: Scott and Burgan (2005), "Standard fire behavior fuel models", RMRS-GTR-153, table 7.

Models with live herbaceous fuel are dynamic: as it cures, part of its load counts as dead.
"""


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
    fuel_model: NDArray[np.uint8]  # codes of `data.fuel_breaks`
    valid: BoolArray
    burnable: BoolArray  # valid cells whose fuel model burns
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
    try:
        if path.is_dir():
            return landscape_from_bands(_read_geotiffs(path), str(path))
        with np.load(path, allow_pickle=False) as stored:
            return landscape_from_bands(dict(stored), str(path))
    except (OSError, ImportError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        expected = "a landscape as .npz, or a folder of GeoTIFF bands and the package rasterio"
        reason = "pickled objects" if "pickle" in str(error) else error
        raise DataError(f"expected {expected}, got {str(path)!r} ({reason})") from None


def _read_geotiffs(folder: Path) -> dict[str, NDArray[Any]]:
    import rasterio

    bands: dict[str, NDArray[Any]] = {}
    for name in RANGES:
        with rasterio.open(folder / f"{name}.tif") as source:
            bands[name], (width, height) = source.read(1, masked=True), source.res
        if not np.isclose(width, height, rtol=1e-3):
            raise ValueError(f"cells of {name} are {width:g} x {height:g}; project it to a metric grid")
        bands["cell_size_m"] = np.array(float(width))
    return bands


def landscape_from_bands(stored: Mapping[str, NDArray[Any]], source: str) -> Landscape:
    """Build a landscape from bands, whose masked cells are not valid; DataError, naming `source`, if it cannot."""
    if missing := [name for name in RANGES if name not in stored]:
        raise DataError(f"expected the bands {', '.join(RANGES)} in {source}, got none of {', '.join(missing)}")
    shapes = {name: stored[name].shape for name in RANGES}
    shape = shapes["fuel_model"]
    valid = np.array(stored.get("valid", np.ones(shape)), dtype=np.bool_)
    if {*shapes.values(), valid.shape} != {shape} or len(shape) != 2 or not valid.size:
        raise DataError(f"expected bands of one shape (rows, columns) in {source}, got {shapes}, valid: {valid.shape}")
    cell_size_m = float(stored.get("cell_size_m", DEFAULT_CELL_SIZE_M))
    if not 1 <= cell_size_m <= 1000:
        raise DataError(f"expected cells of 1 to 1000 m in {source}, got {cell_size_m:g}; give a metric grid")
    for name in RANGES:
        valid &= ~np.ma.getmaskarray(stored[name])
    bands: dict[str, Float32Array] = {}
    for name, (low, high) in RANGES.items():
        bands[name] = band = np.where(valid, np.asarray(stored[name], np.float32), np.float32(0))
        is_wrong = ~((band >= low) & (band <= high))
        if is_wrong.any():
            expected = f"{name} from {low} to {high} in {source}, other cells not valid"
            raise DataError(f"expected {expected}, got {band[is_wrong][0]:g}")
    fuel = np.where(valid, bands.pop("fuel_model"), BARE_GROUND)
    if unknown := np.setdiff1d(fuel, [*FUEL_MODELS, *UNBURNABLE])[:5].tolist():
        raise DataError(f"expected fuel models of Scott and Burgan (91-99, 101-204) in {source}, got {unknown}")
    # LANDFIRE gives gentle slopes no aspect; the fire model needs one wherever there is a slope.
    is_unknown = (bands["aspect_degrees"] < 0) & (bands["slope_percent"] > 0)
    if is_unknown.any():
        _, computed = slope_and_aspect(np.where(valid, bands["elevation_m"], np.float32(np.nan)), cell_size_m)
        bands["aspect_degrees"] = np.where(is_unknown, computed, bands["aspect_degrees"])
    burnable = np.isin(fuel, list(FUEL_MODELS))
    return Landscape(**bands, fuel_model=fuel.astype(np.uint8), valid=valid, burnable=burnable, cell_size_m=cell_size_m)


def slope_and_aspect(elevation_m: Float32Array, cell_size_m: float) -> tuple[Float32Array, Float32Array]:
    """Return slope in percent and aspect in degrees, by differences that are one-sided beside edges and NaN."""
    southward, eastward = (_gradient(elevation_m, axis) / cell_size_m for axis in (0, 1))
    slope = 100 * np.hypot(southward, eastward)
    # Downslope is against the gradient: east component -eastward, north component +southward.
    aspect = np.rad2deg(np.arctan2(-eastward, southward)) % 360.0
    return slope.astype(np.float32), aspect.astype(np.float32)


def _gradient(values: Float32Array, axis: int) -> Float64Array:
    """Return the change per cell along an axis: the mean of the known steps to it and from it, 0 without any."""
    steps = np.diff(values.astype(np.float64), axis=axis, prepend=np.nan, append=np.nan)
    both = np.ma.masked_invalid([np.delete(steps, -1, axis), np.delete(steps, 0, axis)])
    return np.asarray(both.mean(axis=0).filled(0.0))


def generated_landscape(seed: int, rows: int = 400, columns: int = 240) -> Landscape:
    """Draw a landscape of 30 m cells: fractal elevation, water in the lowest ground, and patches of `_FUELS`."""
    for_elevation, for_fuel = map(np.random.PCG64, np.random.SeedSequence(seed).spawn(2))
    elevation = np.rint(200 + _RELIEF_M * _fractal(rows, columns, 2.2, for_elevation))
    slope, aspect = slope_and_aspect(elevation, DEFAULT_CELL_SIZE_M)
    kind = np.searchsorted(np.cumsum(_FUEL_SHARES)[:-1], _fractal(rows, columns, 1.4, for_fuel))
    is_water = elevation <= np.quantile(elevation, _WATER_SHARE)
    bands = {
        "slope_percent": np.where(is_water, 0.0, np.rint(slope)),
        "aspect_degrees": np.where(is_water | (np.rint(slope) == 0), -1.0, np.rint(aspect) % 360),
        "elevation_m": elevation,
        "canopy_cover_percent": np.where(is_water, 0.0, np.array(_CANOPY_PERCENT)[kind]),
        "fuel_model": np.where(is_water, WATER, np.array(_FUELS)[kind]),
    }
    return landscape_from_bands(bands, f"the built-in landscape of seed {seed}")


def _fractal(rows: int, columns: int, roughness: float, stream: np.random.PCG64) -> Float64Array:
    """Draw noise with an amplitude of frequency to the power -`roughness`, as ranks spread evenly over [0, 1)."""
    size = 2 * max(rows, columns)  # cut from a larger field, since a Fourier sum repeats at its edges
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(np.random.Generator(stream).standard_normal((size, size))) * frequency**-roughness
    field = np.fft.irfft2(noise, s=(size, size))[:rows, :columns]
    return np.asarray((rankdata(field, "ordinal") - 1).reshape(rows, columns) / field.size)


def cut_tiles(landscape: Landscape, config: TileConfig) -> list[Tile]:
    """Cut a landscape into disjoint tiles, by row, then by column, without those of which too little burns.

    The arrays of a tile are views of the landscape's.
    """
    size, tiles = config.tile_cells, list[Tile]()
    rows, columns = (range(0, length - size + 1, size) for length in landscape.shape)
    for row, column in ((row, column) for row in rows for column in columns):
        part = np.s_[row : row + size, column : column + size]
        if landscape.burnable[part].mean() >= config.min_burnable_share:
            arrays: dict[str, Any] = {name: array[part] for name, array in landscape.arrays().items()}
            tiles.append(Tile(row, column, replace(landscape, **arrays)))
    return tiles


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
    if not all(splits.values()):
        counts = {name: len(part) for name, part in splits.items()}
        raise DataError(f"expected tiles for training, validation and test, got {counts}; give a larger landscape")
    return splits

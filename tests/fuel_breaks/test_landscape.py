"""Landscapes: what is read and refused, tiles and their splits, and the built-in terrain."""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.fuel_breaks.config import TileConfig
from data.fuel_breaks.landscape import (
    Tile,
    cut_tiles,
    generated_landscape,
    landscape_from_bands,
    load_landscape,
    slope_and_aspect,
    split_tiles,
)
from tests.fuel_breaks.fire_cases import WATER, flat_landscape, stored_bands
from utils.errors import DataError


def save(path: Path, **values: Any) -> Path:
    np.savez(path, **stored_bands(6, 4, **values))
    return path


def test_a_file_is_read_in_its_units(tmp_path: Path) -> None:
    valid = np.ones((6, 4), dtype=bool)
    valid[0, 0] = False
    fuel = np.full((6, 4), 186)
    fuel[1, 1] = WATER
    path = tmp_path / "land.npz"
    np.savez(path, **stored_bands(6, 4, fuel_model=fuel, elevation_m=321), valid=valid, cell_size_m=np.array(25.0))
    landscape = load_landscape(path)
    assert landscape.shape == (6, 4) and landscape.cell_size_m == 25
    assert landscape.elevation_m[2, 2] == 321 and landscape.elevation_m.dtype == np.float32
    assert not landscape.burnable[0, 0] and not landscape.burnable[1, 1] and landscape.burnable.sum() == 22


def test_cells_without_data_may_hold_anything(tmp_path: Path) -> None:
    bands = stored_bands(3, 3, fuel_model=np.array([[-9999, 186, 186]] * 3), elevation_m=np.array([[-9999, 5, 5]] * 3))
    valid = np.array([[False, True, True]] * 3)
    landscape = landscape_from_bands({**bands, "valid": valid}, "a test")
    assert landscape.burnable.tolist() == valid.tolist()
    assert all(np.isfinite(array).all() for array in landscape.arrays().values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slope_percent": -5}, "slope_percent from 0 to 1000"),
        ({"aspect_degrees": 400}, "aspect_degrees from -1 to 360"),
        ({"aspect_degrees": -2}, "aspect_degrees from -1 to 360"),
        ({"canopy_cover_percent": 101}, "canopy_cover_percent from 0 to 100"),
        ({"elevation_m": np.nan}, "elevation_m from -500 to 9000"),
        ({"fuel_model": 110}, "fuel models of Scott and Burgan"),
        ({"fuel_model": 4}, "fuel models of Scott and Burgan"),
    ],
)
def test_values_out_of_range_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_landscape(save(tmp_path / "land.npz", **changes))


def test_missing_and_odd_shaped_bands_are_named(tmp_path: Path) -> None:
    bands = stored_bands(6, 4)
    del bands["fuel_model"]
    with pytest.raises(DataError, match="bands fuel_model in"):
        landscape_from_bands(bands, "a test")
    with pytest.raises(DataError, match=r"one shape .* got \(6, 5\) for elevation_m"):
        landscape_from_bands({**stored_bands(6, 4), "elevation_m": np.zeros((6, 5))}, "a test")
    with pytest.raises(DataError, match="cells of 1 to 1000 m"):
        landscape_from_bands({**stored_bands(6, 4), "cell_size_m": np.array(0.00027)}, "a test")


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 broken", b"date,ticker\n"])
def test_what_is_no_landscape_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "land.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="expected a landscape as"):
        load_landscape(path)


def write_geotiffs(folder: Path, bands: dict[str, Any], nodata: int | None = None) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    transform = rasterio.transform.from_origin(500_000, 4_900_000, 25, 25)
    for name, array in bands.items():
        rows, columns = array.shape
        profile = {"driver": "GTiff", "height": rows, "width": columns, "count": 1, "dtype": "int16"}
        with rasterio.open(folder / f"{name}.tif", "w", transform=transform, nodata=nodata, **profile) as target:
            target.write(array.astype(np.int16), 1)


def test_geotiffs_give_the_same_landscape(tmp_path: Path) -> None:
    elevation = np.arange(24).reshape(6, 4)
    elevation[5, 3] = -9999
    write_geotiffs(tmp_path, stored_bands(6, 4, elevation_m=elevation, slope_percent=7, aspect_degrees=90), -9999)
    landscape = load_landscape(tmp_path)
    assert landscape.cell_size_m == 25 and not landscape.valid[5, 3] and landscape.valid.sum() == 23
    assert landscape.elevation_m[0].tolist() == [0, 1, 2, 3] and (landscape.slope_percent[0] == 7).all()
    (tmp_path / "fuel_model.tif").unlink()
    with pytest.raises(DataError, match=r"expected the band fuel_model\.tif"):
        load_landscape(tmp_path)


def test_geotiffs_without_rasterio_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(DataError, match="pip install rasterio"):
        load_landscape(tmp_path)


@pytest.mark.parametrize(("east", "north", "aspect"), [(-1, 0, 90), (1, 0, 270), (0, -1, 0), (0, 1, 180), (-1, -1, 45)])
def test_the_aspect_is_where_the_ground_falls(east: int, north: int, aspect: float) -> None:
    row, column = np.indices((5, 5)) * 30.0
    slope, found = slope_and_aspect(0.2 * (east * column - north * row), 30.0)
    np.testing.assert_allclose(found, aspect, atol=1e-3)
    np.testing.assert_allclose(slope, 20 * np.hypot(east, north), rtol=1e-5)


def test_elevations_that_are_not_known_are_left_out() -> None:
    falls_to_the_east = (200 - 6 * np.arange(5) * np.ones((5, 1))).astype(np.float32)
    falls_to_the_east[1:4, 2] = np.nan
    slope, aspect = slope_and_aspect(falls_to_the_east, 30.0)
    known = np.isfinite(falls_to_the_east)
    np.testing.assert_allclose(aspect[known], 90, atol=1e-3)
    np.testing.assert_allclose(slope[known], 20, rtol=1e-5)


@given(st.integers(0, 100), st.integers(2, 9), st.integers(20, 70), st.integers(20, 70), st.floats(0.1, 1.0))
def test_tiles_are_disjoint_and_burn(seed: int, size: int, rows: int, columns: int, share: float) -> None:
    burns = np.random.default_rng(seed).random((rows, columns)) < 0.8
    landscape = flat_landscape(rows, columns, fuel_model=np.where(burns, 186, WATER))
    tiles = cut_tiles(landscape, TileConfig(tile_cells=size, min_burnable_share=share))
    covered = np.zeros((rows, columns), dtype=int)
    for tile in tiles:
        part = np.s_[tile.row : tile.row + size, tile.column : tile.column + size]
        covered[part] += 1
        assert tile.landscape.shape == (size, size) and tile.landscape.burnable.mean() >= share
        assert (tile.landscape.burnable == burns[part]).all()
    assert covered.max(initial=0) <= 1
    blocks = burns[: rows // size * size, : columns // size * size].reshape(rows // size, size, columns // size, size)
    assert len(tiles) == (blocks.mean(axis=(1, 3)) >= share).sum()


def tiles_at(rows: list[int], size: int) -> list[Tile]:
    landscape = flat_landscape(size, size)
    return [Tile(row * size, column * size, landscape) for row in sorted(rows) for column in range(2)]


@given(
    st.lists(st.integers(0, 80), min_size=12, max_size=60, unique=True),
    st.floats(0.3, 0.6),
    st.floats(0.1, 0.3),
    st.integers(0, 3),
)
def test_splits_lie_apart(rows: list[int], train: float, validation: float, buffer: int) -> None:
    config = TileConfig(tile_cells=5, train_fraction=train, validation_fraction=validation, buffer_rows=buffer)
    tiles = tiles_at(rows, 5)
    try:
        splits = split_tiles(tiles, config)
    except DataError as error:
        assert "got none for" in str(error)
        return
    parts = list(splits.values())
    for north, south in itertools.pairwise(parts):
        assert min(t.row for t in south) - max(t.row for t in north) >= 5 * (buffer + 1)
    kept = [id(tile) for part in parts for tile in part]
    assert len(kept) == len(set(kept)) and set(kept) <= {id(tile) for tile in tiles}
    assert len(splits["train"]) <= train * len(tiles) + 2


def test_too_few_tiles_are_refused() -> None:
    for rows in ([], [0], [0, 1, 2]):
        with pytest.raises(DataError, match="tiles for training, validation and test"):
            split_tiles(tiles_at(rows, 5), TileConfig(tile_cells=5, buffer_rows=2))


def test_the_built_in_landscape() -> None:
    landscape = generated_landscape(3)
    again, other = generated_landscape(3), generated_landscape(4)
    assert (landscape.elevation_m == again.elevation_m).all() and (landscape.fuel_model == again.fuel_model).all()
    assert (landscape.elevation_m != other.elevation_m).any()
    is_water = landscape.fuel_model == WATER
    assert 0.03 < is_water.mean() < 0.1 and landscape.valid.all()
    assert landscape.elevation_m[is_water].max() <= landscape.elevation_m[~is_water].min()
    slope, _ = slope_and_aspect(landscape.elevation_m, 30.0)
    np.testing.assert_allclose(landscape.slope_percent[~is_water], slope[~is_water], atol=0.51)
    assert 5 < slope.mean() < 40
    splits = split_tiles(cut_tiles(landscape, TileConfig()), TileConfig())
    assert len(splits["train"]) >= 80 and len(splits["validation"]) >= 20 and len(splits["test"]) >= 20

"""Landscapes: what is read and refused, tiles and their splits, and the built-in terrain."""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.fuel_breaks import (
    Tile,
    cut_tiles,
    generated_landscape,
    landscape_from_bands,
    load_landscape,
    slope_and_aspect,
    split_tiles,
)
from tests.fuel_breaks.run_cases import WATER, flat_landscape, stored_bands
from utils.config.fuel_breaks import TileConfig
from utils.errors import DataError

GROUND = flat_landscape(1, 1)


def test_a_file_is_read_in_its_units_and_cells_without_data_may_hold_anything(tmp_path: Path) -> None:
    valid = np.arange(24).reshape(6, 4) > 0
    fuel, elevation = np.full((6, 4), 186), np.where(valid, 321, -9999)
    fuel[0, 0], fuel[1, 1] = -9999, WATER
    path = tmp_path / "land.npz"
    bands = stored_bands(6, 4, fuel_model=fuel, elevation_m=elevation)
    np.savez(path, **bands, valid=valid, cell_size_m=np.array(25.0))
    landscape = load_landscape(path)
    assert landscape.shape == (6, 4) and landscape.cell_size_m == 25
    assert landscape.elevation_m[2, 2] == 321 and landscape.elevation_m.dtype == np.float32
    assert not landscape.burnable[0, 0] and not landscape.burnable[1, 1] and landscape.burnable.sum() == 22


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slope_percent": np.full((6, 4), -5)}, "slope_percent from 0 to 1000"),
        ({"elevation_m": np.full((6, 4), np.nan)}, "elevation_m from -500 to 9000"),
        ({"fuel_model": np.full((6, 4), 110)}, r"fuel models of Scott and Burgan .* got \[110"),
        ({"elevation_m": np.zeros((6, 5))}, r"bands of one shape .*'elevation_m': \(6, 5\)"),
        ({"cell_size_m": np.array(0.00027)}, "cells of 1 to 1000 m"),
    ],
)
def test_bands_that_make_no_landscape_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        landscape_from_bands({**stored_bands(6, 4), **changes}, "a test")


def test_bands_that_are_missing_are_named() -> None:
    bands = stored_bands(6, 4)
    del bands["elevation_m"]
    with pytest.raises(DataError, match=r"expected the bands .* in a test, got none of elevation_m$"):
        landscape_from_bands(bands, "a test")


def test_pickled_objects_are_no_landscape(tmp_path: Path) -> None:
    np.save(tmp_path / "land.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(DataError, match=r"\(pickled objects\)$"):
        load_landscape(tmp_path / "land.npy")


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 broken", b"date,ticker\n"])
def test_what_is_no_landscape_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "land.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="expected a landscape as"):
        load_landscape(path)


def test_geotiffs_give_the_same_landscape(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    elevation = np.arange(24).reshape(6, 4)
    elevation[5, 3] = -9999
    form = {"driver": "GTiff", "height": 6, "width": 4, "count": 1, "dtype": "int16", "nodata": -9999}
    place = rasterio.transform.from_origin(500_000, 4_900_000, 25, 25)
    for name, array in stored_bands(6, 4, elevation_m=elevation, slope_percent=7, aspect_degrees=90).items():
        with rasterio.open(tmp_path / f"{name}.tif", "w", transform=place, **form) as target:
            target.write(array.astype(np.int16), 1)
    landscape = load_landscape(tmp_path)
    assert landscape.cell_size_m == 25 and not landscape.valid[5, 3] and landscape.valid.sum() == 23
    assert landscape.elevation_m[0].tolist() == [0, 1, 2, 3] and (landscape.slope_percent[0] == 7).all()
    (tmp_path / "fuel_model.tif").unlink()
    with pytest.raises(DataError, match=r"fuel_model\.tif"):
        load_landscape(tmp_path)


def test_geotiffs_without_rasterio_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(DataError, match="the package rasterio"):
        load_landscape(tmp_path)


@pytest.mark.parametrize(("east", "north", "aspect"), [(-1, 0, 90), (1, 0, 270), (0, -1, 0), (0, 1, 180), (-1, -1, 45)])
def test_the_aspect_is_where_the_ground_falls(east: int, north: int, aspect: float) -> None:
    row, column = np.indices((6, 6)) * 30.0
    elevation = 0.2 * (east * column - north * row)
    elevation[2:4, 2:4] = np.nan
    slope, found = slope_and_aspect(elevation, 30.0)
    known = np.isfinite(elevation)
    np.testing.assert_allclose(found[known], aspect, atol=1e-3)
    np.testing.assert_allclose(slope[known], 20 * np.hypot(east, north), rtol=1e-5)


@given(st.integers(0, 100), st.integers(2, 9), st.integers(20, 50), st.integers(20, 50), st.floats(0.1, 1.0))
def test_tiles_are_disjoint_and_burn(seed: int, size: int, rows: int, columns: int, share: float) -> None:
    burns = np.random.default_rng(seed).random((rows, columns)) < 0.8
    landscape = flat_landscape(rows, columns, fuel_model=np.where(burns, 186, WATER))
    tiles = cut_tiles(landscape, TileConfig(tile_cells=size, min_burnable_share=share))
    assert all(tile.row % size == tile.column % size == 0 for tile in tiles)
    assert len({(tile.row, tile.column) for tile in tiles}) == len(tiles)
    for tile in tiles:
        part = np.s_[tile.row : tile.row + size, tile.column : tile.column + size]
        assert tile.landscape.shape == (size, size) and tile.landscape.burnable.mean() >= share
        assert (tile.landscape.burnable == burns[part]).all()
    blocks = burns[: rows // size * size, : columns // size * size].reshape(rows // size, size, columns // size, size)
    assert len(tiles) == (blocks.mean(axis=(1, 3)) >= share).sum()


@given(
    st.lists(st.integers(0, 80), max_size=60, unique=True), st.floats(0.3, 0.6), st.floats(0.1, 0.3), st.integers(0, 3)
)
def test_splits_lie_apart(rows: list[int], train: float, validation: float, buffer: int) -> None:
    config = TileConfig(tile_cells=5, train_fraction=train, validation_fraction=validation, buffer_rows=buffer)
    tiles = [Tile(row * 5, column, GROUND) for row in sorted(rows) for column in (0, 5)]
    try:
        splits = split_tiles(tiles, config)
    except DataError as error:
        assert "expected tiles for training, validation and test" in str(error)
        return
    parts = list(splits.values())
    for north, south in itertools.pairwise(parts):
        assert min(t.row for t in south) - max(t.row for t in north) >= 5 * (buffer + 1)
    kept = [id(tile) for part in parts for tile in part]
    assert len(kept) == len(set(kept)) and set(kept) <= {id(tile) for tile in tiles}
    assert len(splits["train"]) <= train * len(tiles) + 2


def test_the_built_in_landscape() -> None:
    landscape, again, other = (generated_landscape(seed) for seed in (3, 3, 4))
    assert (landscape.elevation_m == again.elevation_m).all() and (landscape.fuel_model == again.fuel_model).all()
    assert (landscape.elevation_m != other.elevation_m).any()
    is_water = landscape.fuel_model == WATER
    assert 0.03 < is_water.mean() < 0.1 and landscape.valid.all()
    assert landscape.elevation_m[is_water].max() <= landscape.elevation_m[~is_water].min()
    slope, _ = slope_and_aspect(landscape.elevation_m, 30.0)
    np.testing.assert_allclose(landscape.slope_percent[~is_water], slope[~is_water], atol=0.51)
    splits = split_tiles(cut_tiles(landscape, TileConfig()), TileConfig())
    assert len(splits["train"]) >= 80 and len(splits["validation"]) >= 20 and len(splits["test"]) >= 20

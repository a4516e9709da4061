"""The generated landscape: hills, water and patches of fuel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from data.fuel_breaks.fuel_models import WATER_FUEL_MODEL
from data.fuel_breaks.landscape import DEFAULT_CELL_SIZE_M, Landscape, landscape_from_bands, slope_and_aspect

Float64Array = NDArray[np.float64]

_RELIEF_M = 350.0
_WATER_SHARE = 0.06
_FUELS = (102, 122, 165, 186, 189, 183)  # from open and dry to closed: grass, grass and shrub, understory, litter
_FUEL_SHARES = (0.08, 0.10, 0.14, 0.34, 0.14, 0.20)
_CANOPY_PERCENT = (5.0, 15.0, 60.0, 75.0, 70.0, 85.0)


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

"""The forty standard fire behaviour fuel models of Scott and Burgan (2005), and the codes of unburnable ground."""

from dataclasses import dataclass

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
    heat_btu_lb: float = 8000.0


FUEL_MODELS = {
    101: FuelModel("GR1", 0.10, 0.00, 0.00, 0.30, 0.00, 2200, 2000, 0, 0.4, 15),
    102: FuelModel("GR2", 0.10, 0.00, 0.00, 1.00, 0.00, 2000, 1800, 0, 1.0, 15),
    103: FuelModel("GR3", 0.10, 0.40, 0.00, 1.50, 0.00, 1500, 1300, 0, 2.0, 30),
    104: FuelModel("GR4", 0.25, 0.00, 0.00, 1.90, 0.00, 2000, 1800, 0, 2.0, 15),
    105: FuelModel("GR5", 0.40, 0.00, 0.00, 2.50, 0.00, 1800, 1600, 0, 1.5, 40),
    106: FuelModel("GR6", 0.10, 0.00, 0.00, 3.40, 0.00, 2200, 2000, 0, 1.5, 40, 9000),
    107: FuelModel("GR7", 1.00, 0.00, 0.00, 5.40, 0.00, 2000, 1800, 0, 3.0, 15),
    108: FuelModel("GR8", 0.50, 1.00, 0.00, 7.30, 0.00, 1500, 1300, 0, 4.0, 30),
    109: FuelModel("GR9", 1.00, 1.00, 0.00, 9.00, 0.00, 1800, 1600, 0, 5.0, 40),
    121: FuelModel("GS1", 0.20, 0.00, 0.00, 0.50, 0.65, 2000, 1800, 1800, 0.9, 15),
    122: FuelModel("GS2", 0.50, 0.50, 0.00, 0.60, 1.00, 2000, 1800, 1800, 1.5, 15),
    123: FuelModel("GS3", 0.30, 0.25, 0.00, 1.45, 1.25, 1800, 1600, 1600, 1.8, 40),
    124: FuelModel("GS4", 1.90, 0.30, 0.10, 3.40, 7.10, 1800, 1600, 1600, 2.1, 40),
    141: FuelModel("SH1", 0.25, 0.25, 0.00, 0.15, 1.30, 2000, 1800, 1600, 1.0, 15),
    142: FuelModel("SH2", 1.35, 2.40, 0.75, 0.00, 3.85, 2000, 0, 1600, 1.0, 15),
    143: FuelModel("SH3", 0.45, 3.00, 0.00, 0.00, 6.20, 1600, 0, 1400, 2.4, 40),
    144: FuelModel("SH4", 0.85, 1.15, 0.20, 0.00, 2.55, 2000, 1800, 1600, 3.0, 30),
    145: FuelModel("SH5", 3.60, 2.10, 0.00, 0.00, 2.90, 750, 0, 1600, 6.0, 15),
    146: FuelModel("SH6", 2.90, 1.45, 0.00, 0.00, 1.40, 750, 0, 1600, 2.0, 30),
    147: FuelModel("SH7", 3.50, 5.30, 2.20, 0.00, 3.40, 750, 0, 1600, 6.0, 15),
    148: FuelModel("SH8", 2.05, 3.40, 0.85, 0.00, 4.35, 750, 0, 1600, 3.0, 40),
    149: FuelModel("SH9", 4.50, 2.45, 0.00, 1.55, 7.00, 750, 1800, 1500, 4.4, 40),
    161: FuelModel("TU1", 0.20, 0.90, 1.50, 0.20, 0.90, 2000, 1800, 1600, 0.6, 20),
    162: FuelModel("TU2", 0.95, 1.80, 1.25, 0.00, 0.20, 2000, 0, 1600, 1.0, 30),
    163: FuelModel("TU3", 1.10, 0.15, 0.25, 0.65, 1.10, 1800, 1600, 1400, 1.3, 30),
    164: FuelModel("TU4", 4.50, 0.00, 0.00, 0.00, 2.00, 2300, 0, 2000, 0.5, 12),
    165: FuelModel("TU5", 4.00, 4.00, 3.00, 0.00, 3.00, 1500, 0, 750, 1.0, 25),
    181: FuelModel("TL1", 1.00, 2.20, 3.60, 0.00, 0.00, 2000, 0, 0, 0.2, 30),
    182: FuelModel("TL2", 1.40, 2.30, 2.20, 0.00, 0.00, 2000, 0, 0, 0.2, 25),
    183: FuelModel("TL3", 0.50, 2.20, 2.80, 0.00, 0.00, 2000, 0, 0, 0.3, 20),
    184: FuelModel("TL4", 0.50, 1.50, 4.20, 0.00, 0.00, 2000, 0, 0, 0.4, 25),
    185: FuelModel("TL5", 1.15, 2.50, 4.40, 0.00, 0.00, 2000, 0, 1600, 0.6, 25),
    186: FuelModel("TL6", 2.40, 1.20, 1.20, 0.00, 0.00, 2000, 0, 0, 0.3, 25),
    187: FuelModel("TL7", 0.30, 1.40, 8.10, 0.00, 0.00, 2000, 0, 0, 0.4, 25),
    188: FuelModel("TL8", 5.80, 1.40, 1.10, 0.00, 0.00, 1800, 0, 0, 0.3, 35),
    189: FuelModel("TL9", 6.65, 3.30, 4.15, 0.00, 0.00, 1800, 0, 1600, 0.6, 35),
    201: FuelModel("SB1", 1.50, 3.00, 11.00, 0.00, 0.00, 2000, 0, 0, 1.0, 25),
    202: FuelModel("SB2", 4.50, 4.25, 4.00, 0.00, 0.00, 2000, 0, 0, 1.0, 25),
    203: FuelModel("SB3", 5.50, 2.75, 3.00, 0.00, 0.00, 2000, 0, 0, 1.2, 25),
    204: FuelModel("SB4", 5.25, 3.50, 5.25, 0.00, 0.00, 2000, 0, 0, 2.7, 25),
}
"""By code. Source: Scott and Burgan (2005), "Standard fire behavior fuel models", RMRS-GTR-153, table 7.

Models with live herbaceous fuel are dynamic: as it cures, part of its load counts as dead.
"""

"""Settings of commands and runs; `Config` holds those of a run of the trader."""

from utils.config.trader import Config

__all__ = ["Config"]

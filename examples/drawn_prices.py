"""A built-in market as a folder of CSV files, one a stock, as a vendor gives them.

python -m examples.drawn_prices folder_of_csv_files
"""

import sys
from pathlib import Path

from data.synthetic.built_in import bars_frame, synthetic_market
from utils.config.trader import SyntheticConfig


def main(folder: Path) -> None:
    """Draw 2,500 sessions of 30 stocks, whose drift their volume tells, and write one file for each."""
    folder.mkdir(parents=True, exist_ok=True)
    bars = bars_frame(synthetic_market(SyntheticConfig(kind="volume", days=2500, stocks=30), seed=7))
    for ticker, rows in bars.groupby("ticker"):
        rows.drop(columns="ticker").to_csv(folder / f"{ticker}.csv", index=False)


if __name__ == "__main__":
    if len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        main(Path(sys.argv[1]))
    else:
        sys.exit("usage: python -m examples.drawn_prices FOLDER")

"""An agent on new prices: train, save, load, and ask for orders once there are later prices.

python -m examples.new_prices
"""

import sys
import tempfile
from pathlib import Path

from data.synthetic.built_in import bars_frame, synthetic_market
from main import main as program
from models.ddpg_agent import DDPGAgent
from training.run.saved import open_saved_run
from training.signals.signals import make_signals
from utils.config.trader import SyntheticConfig

SMALL = ["--profile=quick", "--generations=1", "--population-size=4", "--evaluation.random-pickers=20", "--rivals=none"]
"""Flags that make the run short; a real one takes its defaults."""


def main() -> None:
    """Train on the first 1,500 sessions, save the champion, load it and print its orders 20 sessions later."""
    prices = bars_frame(
        synthetic_market(SyntheticConfig(kind="momentum", days=1520, stocks=12), seed=3)
    )  # or a file of your own
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known, later = folder / "known.parquet", folder / "later.parquet"
        prices[prices["date"] < prices["date"].unique()[1500]].to_parquet(known)
        prices.to_parquet(later)

        runs = folder / "runs"
        code = program(["--data", str(known), "--runs-dir", str(runs), "--run", "small", *SMALL])
        if code != 0:
            sys.exit(code)
        run = open_saved_run(runs, "small", data=later)
        run.champion.save(folder / "champion.safetensors")

        agent = DDPGAgent.load(folder / "champion.safetensors")
        rules, last_day = run.config.env, len(run.market.dates) - 1
        signals = make_signals(agent, run.benchmark, run.market, last_day, rules, rules.initial_capital)
        print(f"decided at the close of {signals.date}, for {signals.next_session}: {len(signals.orders)} orders")
        for order in signals.orders:
            print(order.side, order.shares, order.ticker, f"to {order.target_percent:.1f}%")


if __name__ == "__main__":
    main()

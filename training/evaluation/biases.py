"""Known biases of data and days, which a judgement names."""

import numpy as np

from data.features.nine import CLOSE
from data.market import Market
from utils.config.trader import Config
from utils.tables import many

LAST_DAYS = 10
"""Days on one of which a survivor has a bar."""


def known_biases(market: Market, config: Config) -> dict[str, str]:
    """Return the known biases of the data and of the days that were used, by name."""
    biases, env = dict[str, str](), config.env
    has_bar = np.asarray(np.isfinite(market.data_array[..., CLOSE]))
    is_whole = np.asarray(has_bar.all(axis=0))
    if config.data is None:
        biases["Built-in market"] = "Its structure was planted: results say nothing about real markets."
    elif has_bar[-LAST_DAYS:].any(axis=0).all():
        biases["Survivors only"] = (
            f"All of {many(len(market.tickers), 'ticker')} trade to the last day. Stocks that failed are not in the "
            "data, which flatters every policy that buys: champion, random pickers and benchmark alike."
        )
    elif env.delisting_loss == 0:
        biases["Delisting"] = (
            "A stock that stops trading is sold at its last price, which flatters policies that hold failing "
            "stocks. --env.delisting-loss takes a loss, 30% in Shumway 1997."
        )
    if market.repairs:
        biases["Repaired data"] = f"{market.repairs}."
    if is_whole[market.investable_columns].all() and not is_whole.all():
        biases["Chosen in hindsight"] = (
            "The stocks that may be bought have bars on all days, and others do not. A list made today of stocks "
            "that lasted flatters every policy that buys."
        )
    when = "the close" if env.fill == "same_close" else "the open"
    size = "whatever their size" if env.volume_cap == 0 else f"up to {env.volume_cap:g}% of the day's volume"
    remedy = " --env.volume-cap limits them where the data have volume." if env.volume_cap == 0 else ""
    biases["Fills"] = (
        f"Orders fill at {when}, {size}: daily bars do not show market impact, which flatters large accounts.{remedy}"
    )
    return biases

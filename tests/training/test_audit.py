"""The audit of look-ahead: it passes what reads the past only, and catches leaks of every kind and place."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from data import loader
from data.features import bank, inputs
from data.features.inputs import TradeInputs
from data.features.nine import CLOSE, PRICES
from data.features.responses import Responses
from data.loader import StockDataLoader
from data.market import Market
from environment import trading_env
from environment.account import Account
from environment.quotes import Quotes
from main import main
from models.ddpg_agent import DDPGAgent
from tests import tiny_run
from tests.market_cases import random_panel
from tests.small_market import TINY_RULES, market_of, small_market
from tests.tiny import tiny_agent
from training.commands.audit import audit
from training.run.saved import SavedRun
from utils.config.trader import Config
from utils.errors import LookAheadError

Array = npt.NDArray[Any]
Change = Callable[[Any], Any]
MARKET = small_market(1, 200, 6, investable=(0, 2, 3, 5))
AGENT = tiny_agent(MARKET, members=2, seed=2)


def saved(market: Market = MARKET, agent: DDPGAgent = AGENT) -> SavedRun:
    config = Config(env=TINY_RULES)
    return SavedRun(Path("run"), config, market, None, torch.device("cpu"), 1, agent, agent)


def audited(days: int = 3, **changes: Any) -> int:
    return audit(saved(**changes), days, np.random.default_rng(1))


def earlier(values: Array) -> Array:
    """Values of the next day, dated earlier."""
    return np.concatenate((values[1:], values[-1:]))


def filled_back(values: Array) -> Array:
    """Missing values replaced by the next known one."""
    found = values.copy()
    for day in range(len(found) - 2, -1, -1):
        found[day] = np.where(np.isnan(found[day]), found[day + 1], found[day])
    return found


def relative_to_all(values: Array) -> Array:
    """Values less their mean over all days, in deviations over all days."""
    known = np.where(np.isnan(values), 0.0, values)
    return np.asarray((values - known.mean(axis=0)) / (known.std(axis=0) + 1e-6), dtype=values.dtype)


def of_result(change: Callable[[Array], Array]) -> Change:
    """Change what a function returns."""
    return lambda real: lambda *args, **kwargs: change(real(*args, **kwargs))


def of_first(change: Callable[[Array], Array]) -> Change:
    """Change the first argument of a function or the second of a method."""

    def changed(real: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            place = next(i for i, arg in enumerate(args) if isinstance(arg, np.ndarray | torch.Tensor))
            return real(*args[:place], change(args[place]), *args[place + 1 :], **kwargs)

        return called

    return changed


def of_bars(change: Callable[[Array], None]) -> Change:
    """Change the array that a loader has prepared, in place."""

    def changed(real: Callable[[StockDataLoader], Any]) -> Any:
        def load(self: StockDataLoader) -> Any:
            done = real(self)
            change(self.data_array)
            return done

        return load

    return changed


def with_label(real: Any) -> Any:
    """Write the return of the next session into the first input of the bank."""

    def leaky(self: TradeInputs, market: Market, days: slice = slice(None)) -> Any:
        label = np.nan_to_num(np.log(earlier(market.close) / market.close))[days]
        for stocks, x in real(self, market, days):
            x[..., 1] = label[:, stocks]
            yield stocks, x

    return leaky


def back_filled(data: Array) -> None:
    data[:] = filled_back(data)


def relative_to_the_last(data: Array) -> None:
    last = filled_back(data[::-1])[0][:, [CLOSE]]
    data[..., list(PRICES)] /= last


def of_survivors(data: Array) -> None:
    data[:, np.isnan(data[-20:, :, CLOSE]).all(axis=0)] = np.nan


def of_gains(change: Callable[[Array], Array]) -> Change:
    """Change the (days, n) gains that an agent forecasts, NaN without a bar."""

    def changed(gain: torch.Tensor) -> torch.Tensor:
        known = np.where(np.isfinite(gain[0].numpy()), gain[0].numpy(), np.nan)
        return torch.from_numpy(np.nan_to_num(change(known), nan=-np.inf)[None].astype(np.float32))

    return lambda real: (
        lambda *given, **named: dataclasses.replace(found := real(*given, **named), score=changed(found.score))
    )


def _next_day(real: Any) -> Any:
    return lambda self, observation, forecasts, day: real(self, observation, forecasts, day + 1)


def _of_all_days(real: Any) -> Any:
    return lambda data, last_day: real(data, len(data) - 1)


def _shifted_prices(real: Any) -> Any:
    def later(values: torch.Tensor) -> torch.Tensor:
        return torch.cat((values[1:], values[-1:]))

    return classmethod(lambda cls, *prices, **named: real.__func__(cls, *map(later, prices[:2]), **named))


def _close(change: Callable[[Array], Array]) -> Change:
    return lambda real: property(lambda market: change(real.fget(market)))


LEAKS: dict[str, tuple[Any, str, Change]] = {
    "indicators dated a day early": (loader, "indicators", of_result(earlier)),
    "indicators in deviations of all days": (loader, "indicators", of_result(relative_to_all)),
    "indicators of reversed closes": (loader, "indicators", lambda real: lambda close: real(close[::-1])[::-1]),
    "bars filled from the next one": (StockDataLoader, "load_and_prepare", of_bars(back_filled)),
    "prices relative to the last close": (StockDataLoader, "load_and_prepare", of_bars(relative_to_the_last)),
    "survivors only": (StockDataLoader, "load_and_prepare", of_bars(of_survivors)),
    "normalisation by all days": (loader, "normalization_stats", _of_all_days),
    "observed features dated a day early": (trading_env, "observed_features", of_result(earlier)),
    "observed features in deviations of all days": (trading_env, "observed_features", of_result(relative_to_all)),
    "closes of tomorrow": (Market, "close", _close(earlier)),
    "closes filled from the next one": (Market, "close", _close(filled_back)),
    "returns of tomorrow": (bank, "log_returns", of_result(earlier)),
    "means of reversed returns": (bank, "exponential_mean", lambda real: lambda x, h: real(x[::-1], h)[::-1]),
    "bank less its mean over all days": (inputs, "multi_scale_bank", of_result(relative_to_all)),
    "label of tomorrow among the inputs": (TradeInputs, "blocks", with_label),
    "inputs in deviations of the forecast days": (TradeInputs, "_standardised", of_result(relative_to_all)),
    "leaders a day early": (Responses, "forecaster", of_first(earlier)),
    "forecasts of tomorrow": (DDPGAgent, "forecasts", of_gains(earlier)),
    "forecasts in deviations of all days": (DDPGAgent, "forecasts", of_gains(relative_to_all)),
    "decisions by forecasts of tomorrow": (DDPGAgent, "act", _next_day),
    "an account at prices of tomorrow": (Quotes, "of", _shifted_prices),
    "bars of tomorrow": (Account, "has_bar", lambda _: property(lambda self: self.quotes.close[self.day + 1] > 0)),
}


def test_a_learner_that_reads_the_past_passes() -> None:
    assert audited() == 9


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_caught_and_named(leak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, change = LEAKS[leak]
    real = vars(owner)[name]
    monkeypatch.setattr(owner, name, change(real))
    with pytest.raises(LookAheadError, match=r"expected what is known on .* was .* and became "):
        audited(days=12)


def test_a_backward_fill_is_caught_where_the_data_have_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit opens some; what reads the past only still passes."""
    gaps = {"missing": 0.0, "delist": 0.0, "late_start": 0.0, "halt": 0.0}
    market = market_of(random_panel(np.random.default_rng(1), 200, 6, **gaps), investable=(0, 2, 3, 5))
    assert np.isfinite(market.close).all()
    agent = tiny_agent(market, members=2, seed=2)
    assert audited(market=market, agent=agent) == 9
    load = StockDataLoader.load_and_prepare
    monkeypatch.setattr(StockDataLoader, "load_and_prepare", of_bars(back_filled)(load))
    with pytest.raises(LookAheadError):
        audited(market=market, agent=agent)


def test_the_command_reports_and_names_a_leak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "tiny.toml"
    settings.write_text(tiny_run.TINY)
    with tiny_run.unjudged():
        assert tiny_run.run(settings, "--run", "one") == 0
    flags = ["audit", "--runs-dir", str(tmp_path / "runs"), "--days", "1", "--run"]
    assert main([*flags, "one"]) == 0
    assert "poisoned and scaled; 3 futures" in capsys.readouterr().out
    assert main([*flags, "two"]) == 2
    monkeypatch.setattr(loader, "indicators", of_result(earlier)(loader.indicators))
    assert main([*flags, "one"]) == LookAheadError.exit_code == 4
    assert "features of " in capsys.readouterr().err

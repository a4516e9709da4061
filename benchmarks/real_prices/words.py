"""What the numbers say, in plain words: what is established, what is not, what such data cannot tell."""

from collections.abc import Iterator

from benchmarks.real_prices.ledger import versions
from benchmarks.real_prices.measures import Finding
from benchmarks.real_prices.plan import AT_EXPOSURE, BEST_RIVAL, LISTED, PICKERS
from benchmarks.real_prices.report import Report


def summary(report: Report) -> str:
    """Return what was found on training days and test days, and what was not, as text for a console."""
    found = {outcome: [one for one in report.findings if one.outcome == outcome] for outcome in ("better", "worse")}
    said = [f"{_subject(report, one)} earned more than {_against(report, one)}." for one in found["better"]]
    said += [f"{_subject(report, one)} earned less than {_against(report, one)}." for one in found["worse"]]
    established = said or ["Nothing, by the comparisons that were named beforehand."]
    parts = [f"{stocks_of(report, name).capitalize()}: {evidence(report, name)}" for name in report.fields]
    for title, sentences in (
        ("Established", established),
        ("Not established", [f"The other {len(report.findings) - len(said)} comparisons of the table.", power(report)]),
        ("What these data cannot tell", limits(report)),
    ):
        parts.append("\n".join((f"{title}:", *(f"- {sentence}" for sentence in sentences))))
    return "\n\n".join([*parts, runs(report)])


def power(report: Report) -> str:
    """Say which edge could have been seen by the main test."""
    main, within = report.findings[0].comparison, report.plan.close_percent
    found, folds = report.power(main.universe, main.policy), report.fields[main.universe].folds
    near = [round(folds * found[f"share_of_folds_close_to_{name}"]) for name in ("pickers", "equal_at_exposure")]
    return (
        f"Small edges: over these days a true edge of {found['detectable_over_pickers']:.1f} % a year over random "
        f"selections would have been seen with a chance of 80%, and one of "
        f"{found['detectable_over_equal_at_exposure']:.1f} % over equal weight at its exposure, without allowance for "
        f"the number of comparisons. Fold by fold the {main.policy} came within {within:g} % a year of random "
        f"selections in {near[0]} of {folds} folds and of equal weight at its exposure in {near[1]}."
    )


def limits(report: Report) -> Iterator[str]:
    """Say what no analysis of these data can answer."""
    facts = report.facts
    if facts.lasting == facts.tickers:
        yield (
            f"Survivors only: all {facts.tickers} tickers trade to the last day ({facts.last_day}). Stocks that failed "
            "are missing, which flatters whatever buys, a policy that prefers failing stocks most."
        )
    yield (
        "Fills are those of daily bars, without market impact; cash earns nothing, and dividends count as the file's "
        "prices have them."
    )
    yield (
        f"One history: {len(report.dates)} days, {report.dates[0]} to {report.dates[-1]}. Intervals allow for the days "
        "that might have come instead, not for a market of another kind. Seeds share these days and add no evidence."
    )
    yield "Whoever built the trader may have known how these years went. Fixed beforehand are plan and training days."


def evidence(report: Report, universe: str) -> str:
    """Say how often the product's forecasts were not significant on training days, and what it did there."""
    lacking, holding, trainings = report.without_evidence(universe)
    if not trainings:
        return ""
    follows = "all trade as trained" if holding == 0 else f"{holding} of them hold the market, stock by stock"
    return (
        f"In {lacking} of {trainings} trainings of the product the training days showed no significant evidence for "
        f"what the champion expects{f': {follows}' if lacking else ''}."
    )


def runs(report: Report) -> str:
    """Say how often these test days were played, and under which plan and code."""
    looks, played = report.looks, versions(report.looks)
    times = "once" if len(looks) == 1 else f"{len(looks)} times"
    return (
        f"The plan {report.plan.digest[:12]} was fixed before the first run ({looks[0].time}). The study was run over "
        f"these test days {times} from this folder, each time under the same plan and on the same data. Runs from "
        f"other folders are not counted here. Code: {', '.join(played) or 'unknown'}."
    )


def stocks_of(report: Report, universe: str) -> str:
    """Name the stocks of a universe, and the settings of its own."""
    (own,) = (one for one in report.plan.universes if one.name == universe)
    facts = report.facts
    stocks = f"the {facts.listed} listed stocks" if own.stocks == LISTED else f"all {facts.tickers} stocks"
    changed = [f"{name.rpartition('.')[2].replace('_', ' ')} {value}" for name, value in own.settings.items()]
    return f"{stocks} ({', '.join(changed)})" if changed else stocks


def _subject(report: Report, found: Finding) -> str:
    return f"In {stocks_of(report, found.comparison.universe)} the {found.comparison.policy}"


def _against(report: Report, found: Finding) -> str:
    own = found.comparison
    if own.against == BEST_RIVAL:
        return f"{found.against}, the best of {len(report.fields[own.universe].rivals)} baselines"
    known = {PICKERS: "random selections with its orders", AT_EXPOSURE: "equal weight held at its exposure"}
    return known.get(own.against, own.against)

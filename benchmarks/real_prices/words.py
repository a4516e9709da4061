"""What the numbers say, in plain words: what is established, what is not, what such data cannot tell."""

from collections.abc import Iterator

from benchmarks.real_prices.ledger import versions
from benchmarks.real_prices.measures import Finding
from benchmarks.real_prices.plan import AT_EXPOSURE, BEST_RIVAL, LISTED, PICKERS
from benchmarks.real_prices.report import Report
from training.evaluation.baselines import EQUAL
from utils.statistics import MeanTest


def summary(report: Report) -> str:
    """Return the headline, what was found on training days and the three lists as text for a console."""
    parts = [headline(report)]
    parts += [f"{stocks_of(report, name).capitalize()}: {evidence(report, name)}" for name in report.fields]
    for title, said in lists(report).items():
        parts.append("\n".join((f"{title}:", *(f"- {sentence}" for sentence in said))))
    return "\n\n".join([*parts, runs(report)])


def lists(report: Report) -> dict[str, list[str]]:
    """Return the sentences by what they are."""
    return {
        "Established": [*established(report)] or ["Nothing, by the comparisons that were named beforehand."],
        "Not established": [*open_questions(report)] or ["Every comparison that was named beforehand has an answer."],
        "What these data cannot tell": [*limits(report)],
    }


def headline(report: Report) -> str:
    """Return the answer of the main test in one sentence."""
    main = report.findings[0]
    stocks, gain = stocks_of(report, main.comparison.universe), _gain(main.test)
    against = _against(report, main)
    if main.outcome == "better":
        return f"In {stocks} the {main.comparison.policy} earned more than {against}: {gain}."
    if main.outcome == "worse":
        return f"In {stocks} the {main.comparison.policy} earned less than {against}: {gain}."
    return f"In {stocks} no difference is shown between the {main.comparison.policy} and {against}: {gain}."


def established(report: Report) -> Iterator[str]:
    """Say which confirmatory comparisons have an answer."""
    for found in report.findings:
        if found.outcome != "open":
            verb = "more" if found.outcome == "better" else "less"
            yield f"{_subject(report, found)} earned {verb} than {_against(report, found)}: {_evidence(report, found)}."


def open_questions(report: Report) -> Iterator[str]:
    """Say which have none, and what could have been seen."""
    for found in report.findings:
        if found.outcome == "open":
            yield (
                f"{_subject(report, found)} beside {_against(report, found)}: {_evidence(report, found)}. "
                "It may be better, level or worse within that interval."
            )
    main = report.findings[0].comparison
    power, within = report.power(main.universe, main.policy), report.plan.close_percent
    field = report.fields[main.universe]
    yield (
        f"Small edges: over these days a true edge of {power['detectable_over_pickers']:.1f} % a year over random "
        f"selections would have been seen with a chance of 80%, and one of "
        f"{power['detectable_over_equal_at_exposure']:.1f} % over equal weight at its exposure. Smaller ones would "
        "mostly have been missed, before any allowance for the number of comparisons."
    )
    if report.findings[0].outcome == "open":
        names = ("pickers", "equal_at_exposure")
        near = [round(field.folds * power[f"share_of_folds_close_to_{name}"]) for name in names]
        yield (
            f"That nothing is there: fold by fold the {main.policy} came within {within:g} % a year of random "
            f"selections in {near[0]} of {field.folds} folds and of equal weight at its exposure in {near[1]}, "
            "but a single fold is too short to detect so small a difference."
        )


def limits(report: Report) -> Iterator[str]:
    """Say what no analysis of these data can answer."""
    facts, rules = report.facts, report.plan.config.env
    if facts.lasting == facts.tickers:
        yield (
            f"Survivors only: all {facts.tickers} tickers trade to the last day ({facts.last_day}). Stocks that failed "
            "are missing, which flatters whatever buys. It flatters the champion, random selections and equal weight "
            "alike, so that differences are less affected than profits; a policy that prefers failing "
            "stocks is flattered most."
        )
    else:
        yield (
            f"{facts.tickers - facts.lasting} of {facts.tickers} tickers stop early. They are sold at their last "
            "price, or at a loss where that is stated; what their holders really received is not in the data."
        )
    if facts.complete_listed == facts.listed and facts.complete < facts.tickers:
        yield (
            f"A list made in hindsight: the {facts.listed} listed stocks have bars on all days, and "
            f"{facts.tickers - facts.complete} of {facts.tickers} others do not. Nobody knew this list beforehand."
        )
    size = f"up to {rules.volume_cap:g}% of the day's volume" if rules.volume_cap else "whatever their size"
    yield (
        f"Fills: a decision at the close is filled at the next open, {size}, and at the sale target if the day's "
        f"high reaches it, at {10_000 * rules.cost_rate:g} basis points a leg. Market impact is not known to daily "
        "bars; repeating the orders under a volume cap limits sizes but does not move prices."
    )
    yield (
        "Cash earns nothing, nothing is borrowed, no tax is paid. Prices are taken as they stand in the file: where "
        "they are adjusted, dividends count as reinvested at once and free of tax."
    )
    yield (
        f"One history: {len(report.dates)} days, {report.dates[0]} to {report.dates[-1]}. Intervals allow for the days "
        "that might have come instead, not for a market of another kind. Seeds share these days: their spread shows "
        "what the draw of random numbers does, and adds no evidence."
    )
    yield (
        "Whoever built the trader and the baselines may have known how these years went, and nothing undoes that. "
        "Fixed beforehand are the plan and what each fold learns from, which ends before its test days."
    )


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
    code = f"Code: {', '.join(played)}." if played else ""
    changed = " The code changed on the way; parts are not played again for that." if len(played) > 1 else ""
    return (
        f"The plan {report.plan.digest[:12]} was fixed before the first run ({looks[0].time}). The study was run over "
        f"these test days {times} from this folder, each time under the same plan and on the same data: a folder "
        f"refuses any other. Runs from other folders are not counted here. {code}{changed}"
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
    if own.against == PICKERS:
        return "random selections that give its orders for stocks drawn at random"
    if own.against == AT_EXPOSURE:
        return "equal weight held at its exposure"
    if own.against == BEST_RIVAL:
        return f"{found.against}, the best of {len(report.fields[own.universe].rivals)} baselines"
    return EQUAL if own.against == EQUAL else f"the {own.against}"


def _evidence(report: Report, found: Finding) -> str:
    chance = "< 0.001" if found.p_holm < 0.001 else f"{found.p_holm:.3f}"
    return f"{_gain(found.test)}, p {chance} for {len(report.findings)} comparisons together"


def _gain(test: MeanTest) -> str:
    low, high = test.interval
    return f"{test.mean:+.1f} % of the capital a year (95% {low:+.1f} to {high:+.1f})"

"""The report of the study as data: fields, findings, figures, and results.json and the Markdown table made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from benchmarks.real_prices.accounts import Record, account_of
from benchmarks.real_prices.forms import PRODUCT
from benchmarks.real_prices.ledger import Look
from benchmarks.real_prices.measures import Field, Figure, Finding, confirm, detectable, figures
from benchmarks.real_prices.parts import RIVALS, TRAINED, chosen
from benchmarks.real_prices.plan import AT_EXPOSURE, PICKERS, Plan, Universe
from models.evidence import SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class Report:
    """All that the study found."""

    plan: Plan
    records: Sequence[Record]
    looks: Sequence[Look]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Return what was played, by universe."""
        return {universe.name: self._field(universe) for universe in self.plan.universes}

    def _field(self, universe: Universe) -> Field:
        env, played = self.plan.config.env, dict[str, list[list[Record]]]()
        for name, variant, form in self.plan.policies(universe):
            lines = chosen(self.records, universe.name, TRAINED, variant)
            played[name] = [
                [line["policies"][form] for line in lines if line["seed"] == seed] for seed in self.plan.seeds
            ]
        trained, lines = list(played), chosen(self.records, universe.name, RIVALS)
        for name in lines[0]["policies"]:
            # A rival that could not be fitted in a fold is left out.
            if all(name in line["policies"] for line in lines):
                played[name] = [[line["policies"][name] for line in lines]]
        accounts = {name: account_of(lines, env.initial_capital, env.episode_steps) for name, lines in played.items()}
        return Field(accounts, trained, self.plan.folds.test_windows, env.trade_sessions)

    @cached_property
    def dates(self) -> list[str]:
        """Return the test days, the first being that on which the first orders are filled."""
        lines = chosen(self.records, self.plan.universes[0].name, RIVALS)
        return [day for line in lines for day in line["dates"]]

    @cached_property
    def findings(self) -> list[Finding]:
        """Return the confirmatory comparisons, the main test first."""
        return confirm(self.fields, self.plan.comparisons)

    @cached_property
    def figures(self) -> dict[str, dict[str, dict[str, Figure]]]:
        """Return the measures over all folds, by universe and policy."""
        return {
            name: {policy: figures(field, policy) for policy in field.accounts} for name, field in self.fields.items()
        }

    def without_evidence(self, universe: str) -> tuple[int, int, int]:
        """Count the product's trainings: those without significant evidence, where the market is held, and all."""
        lines = chosen(self.records, universe, TRAINED, PRODUCT)
        lacks = [line["p_value"] > SIGNIFICANCE_LEVEL for line in lines]
        # Parts that do not tell are of a time when whoever lacked evidence held the market.
        holds = [line.get("holds_market", lack) for line, lack in zip(lines, lacks, strict=True)]
        return sum(lacks), sum(holds), len(lines)

    def power(self, universe: str, policy: str) -> dict[str, float]:
        """Return the differences, percent a year, that would have been seen with a chance of 80%."""
        field, others = self.fields[universe], {"pickers": PICKERS, "equal_at_exposure": AT_EXPOSURE}
        errors = {name: field.difference(policy, against).standard_error for name, against in others.items()}
        return {f"detectable_over_{name}": detectable(error) for name, error in errors.items()}


def results(report: Report) -> dict[str, Any]:
    """Return what was found as JSON values."""
    return {
        "plan": report.plan.digest,
        "runs": [asdict(look) for look in report.looks],
        "test_days": {"first": report.dates[0], "last": report.dates[-1], "days": len(report.dates)},
        "confirmatory": [_confirmatory(finding) for finding in report.findings],
        "universes": {name: _universe(report, name) for name in report.fields},
    }


def _confirmatory(finding: Finding) -> dict[str, Any]:
    test, (low, high) = finding.test, finding.test.interval
    return {
        **asdict(finding.comparison),
        "held_against": finding.against,
        **{"mean": test.mean, "low": low, "high": high, "standard_error": test.standard_error},
        **{"p_value": finding.p_value, "p_holm": finding.p_holm, "outcome": finding.outcome},
    }


def _universe(report: Report, name: str) -> dict[str, Any]:
    lacking, holding, trainings = report.without_evidence(name)
    return {
        "trainings": trainings,
        "without_evidence": lacking,
        "holding_the_market": holding,
        "policies": {
            policy: {key: figure._asdict() for key, figure in finding.items()}
            for policy, finding in report.figures[name].items()
        },
        "power": {policy: report.power(name, policy) for policy in report.fields[name].trained},
    }


_COLUMNS = {
    "profit": ("profit % a year", 1),
    "sharpe": ("Sharpe", 2),
    "over_pickers": ("over pickers", 1),
    "over_equal_at_exposure": ("over equal weight at its exposure", 1),
    "rank_ic": ("rank IC", 3),
    "max_drawdown": ("drawdown %", 1),
    "exposure": ("exposure %", 0),
}


def markdown(report: Report) -> str:
    """Return the findings and the main measures as Markdown tables."""
    lines = ["| universe | comparison | % a year (95%) | p (Holm) | |", "| --- | --- | ---: | ---: | --- |"]
    for finding in report.findings:
        low, high = finding.test.interval
        chance = "< 0.001" if finding.p_holm < 0.001 else f"{finding.p_holm:.3f}"
        lines.append(
            f"| {finding.comparison.universe} | {finding.comparison.policy} over {finding.against} "
            f"| {finding.test.mean:+.1f} ({low:+.1f} to {high:+.1f}) | {chance} | {finding.outcome} |"
        )
    for name, policies in report.figures.items():
        lines += ["", f"| {name} | " + " | ".join(label for label, _ in _COLUMNS.values()) + " |"]
        lines.append("| --- |" + " ---: |" * len(_COLUMNS))
        for policy, measured in policies.items():
            cells = (_cell(measured.get(key), digits) for key, (_, digits) in _COLUMNS.items())
            lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(figure: Figure | None, digits: int) -> str:
    if figure is None or figure.value is None:
        return ""
    interval = "" if figure.low is None else f" ({figure.low:.{digits}f} to {figure.high:.{digits}f})"
    return f"{figure.value:.{digits}f}{interval}"

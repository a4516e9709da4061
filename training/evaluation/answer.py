"""An evaluation as text: for a person at a terminal, and in full for a file."""

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from training.evaluation.baselines import CHAMPION, CLOSED, EQUAL, IN_FULL, LIGHTGBM, RANDOM, RULE
from training.evaluation.judge import Evaluation
from training.evaluation.measures import METRICS, Estimate
from training.evaluation.verdict import yearly
from utils.statistics import MeanTest, mean_test
from utils.tables import table, written_p

BESIDE = (EQUAL, LIGHTGBM, CLOSED)
"""What a person wants the champion compared with, besides random pickers and the benchmark."""
_LEADS = {1: "clearly better", 0: "no difference", -1: "clearly worse"}
_SKILLS = {
    "selection": {1: "picks stocks better than chance", 0: "no skill in picking stocks", -1: "picks worse than chance"},
    "timing": {1: "times the market", 0: "no timing skill", -1: "times worse than chance"},
}
_BEATS = {1: "beats", 0: "does not beat", -1: "loses to"}
_MOST_COLUMNS, _UNBROKEN = 120, 10**6
_SHOWN = ("return", "sharpe", "max_drawdown", "turnover", "exposure", "beta", "alpha")
"""Measures of a file's table."""
_SYNTHETIC = "synthetic market: says nothing about real ones"


@dataclass(frozen=True)
class Lead:
    """The lead of a champion over a policy."""

    policy: str
    test: MeanTest
    """The champion's lead, percent a year."""
    sign: int
    """1 or -1 where the champion is significantly better or worse, as the verdict says; 0: nothing is told apart."""

    @property
    def word(self) -> str:
        return _LEADS[self.sign]


def leads(evaluation: Evaluation) -> list[Lead]:
    """Return the leads over what was played; tests allow for as many trials and baselines as the verdict's."""
    shown, verdict, curves = list[Lead](), evaluation.verdict, evaluation.played.curves
    best = verdict.best_baseline
    looks = evaluation.trials * (1 if best is None else best.among)
    for name in dict.fromkeys((RANDOM, evaluation.played.benchmark, *BESIDE)):
        if name not in curves:
            continue
        test = {RANDOM: verdict.selection.test, evaluation.played.benchmark: verdict.over_benchmark}.get(name)
        if test is None:
            test = yearly(mean_test(curves[evaluation.judged].daily[0] - curves[name].daily[0], looks))
        sign = verdict.skills["selection"] if name == RANDOM else test.sign
        shown.append(Lead(name, test, sign))
    return shown


def headline(evaluation: Evaluation) -> str:
    """Return in a few words whether training days show an edge, and what follows it; empty where nothing was tested."""
    if not evaluation.evidence:
        return ""
    strongest = min(evaluation.evidence, key=lambda one: min(one.p_value, one.cash_p_value))
    shrink, timing = evaluation.mean_believed
    return replace(strongest, shrink=shrink, timing=timing).headline


def conclusion(evaluation: Evaluation) -> str:
    """Return what the judged days tell, in one line."""
    told, beaten = [_SKILLS[part][sign] for part, sign in evaluation.verdict.skills.items()], leads(evaluation)
    for sign, verb in _BEATS.items():
        if names := [
            one.policy for one in beaten if one.sign == sign and one.policy in (evaluation.played.benchmark, LIGHTGBM)
        ]:
            told.append(f"{verb} {' and '.join(names)}")
    return "; ".join(told)


def untrained(evaluation: Evaluation) -> str:
    """Say that no network was ever trained; empty where one was, or none was to be."""
    records = evaluation.records if evaluation.config.learning.has_gradients else ()
    if not records or any("critic_loss" in record["learning"] for record in records):
        return ""
    replay = records[-1]["replay"]
    return f"never trained (buffer {replay['size']:,} of {replay['training_starts']:,}): more --generations train them"


def earned(evaluation: Evaluation) -> list[str]:
    """Return the policies whose earnings come first: agents that are followed in part, in full, and what is judged."""
    in_full = [IN_FULL] if evaluation.judged == CHAMPION and IN_FULL in evaluation.policies else []
    return [*in_full, evaluation.judged]


def answer(evaluation: Evaluation, lines: Mapping[str, object] | None = None, width: int | None = None) -> str:
    """Return the result as a person reads it on a terminal, with further lines by their labels at its end.

    First what is earned, then what of it is followed and how sure it is, then what else to know.

    Args:
        width: of the lines, letters; default: that of the terminal.
    """
    is_synthetic, policies = evaluation.config.data is None, evaluation.policies
    width = width or min(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    first, last = (str(evaluation.dates[place])[:7] for place in (0, -1))
    said = [f"RESULT  {evaluation.split}, {first} to {last}, after costs"]
    for name in earned(evaluation):
        sharpe, fall = (policies[name][key].value for key in ("sharpe", "max_drawdown"))
        said.append(f"{_cells(name, policies)}   Sharpe {_text(sharpe, '.1f')}   max drawdown {_text(fall, '.0f')} %")
    said.append(f"{'':25}{'lead, % a year':>16}")
    said += [f"{_cells(one.policy, policies)}   {_text(one.test.mean):>7}   {one.word}" for one in leads(evaluation)]
    if RULE in policies:
        said.append(f"{_cells(RULE, policies, 'ceiling')}   {RULE}")
    asked = None if evaluation.judged == CHAMPION else evaluation.played.asked
    labelled = {
        "asked": evaluation.apart or (asked.sentence if asked else ""),
        "training days": evaluation.evidence_sentence,
        evaluation.split: conclusion(evaluation),
        "verdict": "" if is_synthetic else headline(evaluation).partition(":")[0],
        "null markets": evaluation.null.sentence if evaluation.null else "",
        "networks": untrained(evaluation),
        "warning": evaluation.suspicion,
        "note": _SYNTHETIC if is_synthetic else f"known biases: {', '.join(evaluation.biases).lower()}",
    }
    for label, text in labelled.items():
        if text:
            said.append(textwrap.fill(f"  {label:<15}{text}", width, subsequent_indent=" " * 17))
    return "\n".join([*said, *(f"  {label:<15}{text}" for label, text in (lines or {}).items())])  # whole, to be copied


def in_full(evaluation: Evaluation, lines: Mapping[str, object] | None = None) -> str:
    """Return the answer with all policies, tests, what to know before believing them, and the verdict, for files."""
    measures = [
        {"policy": name, **{METRICS[key].label: found[key].value for key in _SHOWN}}
        for name, found in evaluation.policies.items()
    ]
    tables = (table(rows, list(rows[0])) for rows in (measures, part_rows(evaluation)))
    told = [*evaluation.caveats, f"verdict: {' '.join((*evaluation.warnings, evaluation.finding))}"]
    return "\n\n".join([answer(evaluation, lines, _UNBROKEN), *tables, "\n".join(told)])


def part_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the parts of the profit, and the differences from others, with their tests."""
    return [
        {"% a year": label, "mean": test.mean, "95%": "{:+.2f} to {:+.2f}".format(*test.interval), "p": written_p(p)}
        for _, label, test, p in evaluation.verdict.parts
    ]


def _cells(name: str, policies: Mapping[str, Mapping[str, Estimate]], label: str = "") -> str:
    return f"  {label or name:<15}{_text(policies[name]['return'].value):>7} %"


def _text(value: float | None, form: str = "+,.1f") -> str:
    return "-" if value is None else format(value, form)

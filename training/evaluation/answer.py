"""An evaluation as text: for a person at a terminal, and in full for a file."""

import shutil
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from training.evaluation.baselines import CHAMPION, CLOSED, EQUAL, IN_FULL, LIGHTGBM, RANDOM, RULE
from training.evaluation.judge import Evaluation
from training.evaluation.verdict import yearly
from training.forecasts.skill import clearest
from utils.charts import DASH, MINUS, number
from utils.statistics import MeanTest, mean_test
from utils.tables import many, table, written_p

BESIDE = (EQUAL, LIGHTGBM, CLOSED)
"""What a person wants the champion compared with, besides random pickers and the benchmark."""
_LEADS = {1: "clearly better", 0: "no difference", -1: "clearly worse"}
_SKILLS = {
    "selection": {1: "picks stocks better than chance", 0: "no skill in picking stocks", -1: "picks worse than chance"},
    "timing": {1: "times the market", 0: "no timing skill", -1: "times worse than chance"},
}
_BEATS = {1: "beats", 0: "does not beat", -1: "loses to"}
_MOST_COLUMNS = 120
_SYNTHETIC = "synthetic market: says nothing about real ones"


@dataclass(frozen=True)
class Lead:
    """The lead of a champion over a policy."""

    policy: str
    return_percent: float | None
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
        shown.append(Lead(name, evaluation.policies[name]["return"].value, test, sign))
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


def answer(evaluation: Evaluation, **lines: object) -> str:
    """Return the result as a person reads it on a terminal, with further labelled lines at its end.

    First what is earned, then what of it is followed and how sure it is, then what else to know.
    """
    is_synthetic, policies = evaluation.config.data is None, evaluation.policies
    width = min(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    first, last = (str(evaluation.dates[place])[:7] for place in (0, -1))
    said = [f"RESULT  {evaluation.split}, {first} to {last}, after costs"]
    for name in earned(evaluation):
        sharpe, fall = (_plain(policies[name][key].value, n) for key, n in (("sharpe", 1), ("max_drawdown", 0)))
        said.append(f"{_cells(name, policies[name]['return'].value)}   Sharpe {sharpe}   max drawdown {fall} %")
    said.append(f"{'':25}{'lead, % a year':>16}")
    for one in leads(evaluation):
        said.append(f"{_cells(one.policy, one.return_percent)}   {_signed(one.test.mean):>7}   {one.word}")
    if RULE in policies:
        said.append(f"{_cells('ceiling', policies[RULE]['return'].value)}   {RULE}")
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
    return "\n".join([*said, *(f"  {label:<15}{text}" for label, text in lines.items())])  # whole, to be copied


def in_words(evaluation: Evaluation, head: str = "") -> str:
    """Return the most important measures, the tests, what to know, and the verdict; the page has all the rest."""
    dates, text = evaluation.dates, evaluation.evidence_sentence
    head = head or f"{evaluation.title}, {dates[0]} to {dates[-1]}, one account over {many(len(dates) - 1, 'session')}"
    tables = (table(rows, list(rows[0])) for rows in (_policy_rows(evaluation), part_rows(evaluation)))
    said = [head, "\n\n".join(tables)]
    said += [f"known bias: {name}: {effect}" for name, effect in evaluation.biases.items()]
    said += [*evaluation.caveats, *([f"training evidence: {text}"] if text else [])]
    return "\n".join([*said, f"verdict: {' '.join((*evaluation.warnings, evaluation.finding))}"])


def _policy_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the policies as rows of at most 80 columns in all."""
    rows = []
    for name, measures in evaluation.policies.items():
        value, low, high = measures["return"]
        sessions = clearest(found := evaluation.coefficients.get(name, {}))
        rows.append(
            {
                "policy": name,
                "return %": value,
                "return 95%": None if low is None else f"{low:+.2f} to {high:+.2f}",
                "Sharpe": measures["sharpe"].value,
                "beta": measures["beta"].value,
                "alpha %": measures["alpha"].value,
                "rank IC (sessions)": sessions and f"{found[sessions].mean:.3f} ({sessions})",
            }
        )
    return rows


def part_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the parts of the profit, and the differences from others, with their tests."""
    return [
        {"% a year": label, "mean": test.mean, "95%": "{:+.2f} to {:+.2f}".format(*test.interval), "p": written_p(p)}
        for _, label, test, p in evaluation.verdict.parts
    ]


def _cells(label: str, percent: float | None) -> str:
    return f"  {label:<15}{_signed(percent):>7} %"


def _signed(value: float | None) -> str:
    return _plain(value, 1, is_signed=True)


def _plain(value: float | None, decimals: int, *, is_signed: bool = False) -> str:
    return number(value, decimals, is_signed=is_signed).replace(MINUS, "-").replace(DASH, "-")

"""What the trader is worth on real prices: `python -m benchmarks.real_prices --data FILE --investable FILE`.

An expanding walk-forward test as the plan says (`plan.toml`, or another by --plan): populations are trained on each
fold and played on its test days beside baselines, an account a fold. Parts are jobs: --jobs does them side
by side, each result is kept in OUT/parts.jsonl as soon as it is there, and a stopped study goes on. Each run is written
into OUT/runs.jsonl; a folder that was begun under another plan or on other data is refused. At the end stand tables:
returns and excess over equal weight, percent a year with 95% intervals over days, means over seeds, and the same excess
without the fold that adds most to it; then the folds of what was trained, with what their training days told.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.learning.study import JOBS, Record, ending, read_results, run_study, study_executor
from benchmarks.real_prices.ledger import enter, require_same
from benchmarks.real_prices.parts import TRAINED, Source, all_jobs
from benchmarks.real_prices.plan import PLAN, Plan
from training.evaluation.baselines import CHAMPION, EQUAL
from training.evaluation.verdict import yearly
from utils import metrics
from utils.arrays import Float64Array
from utils.runs.run_lock import RunLock
from utils.statistics import mean_test

PARTS = "parts.jsonl"
Account = tuple[Float64Array, Float64Array]
"""(S, days) daily returns in percent, and (S, folds) turnovers."""


def main(words: Sequence[str] | None = None) -> None:
    """Do the parts that have no result yet, then write and print the report."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.real_prices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", type=Path, required=True, help="parquet file of daily bars")
    parser.add_argument("--investable", type=Path, required=True, help="text file, one ticker a line")
    parser.add_argument("--out", type=Path, default=Path("runs/real-prices"), help="folder of the results")
    parser.add_argument("--plan", type=Path, default=PLAN, help="another plan, to try things out on other days")
    parser.add_argument("--jobs", type=int, default=1, help=JOBS)
    arguments = parser.parse_args(words)
    with ending(parser):
        print(run(arguments))


def run(arguments: argparse.Namespace) -> str:
    """Do the study, write its files and return what is printed."""
    source = Source(arguments.data, arguments.investable, Plan.read(arguments.plan))
    source.folds()  # Data that are too short are told before anything is written.
    digest, out = source.digest(), arguments.out
    jobs, path = all_jobs(source, digest), out / PARTS
    require_same(out, source.plan, digest)
    out.mkdir(parents=True, exist_ok=True)
    with RunLock(out):
        known = read_results(path)
        left = [job for job in jobs if not any(job.key.items() <= record.items() for record in known)]
        looks = enter(out, source.plan, digest, len(left))
        print(f"run {len(looks)} over these test days, {len(left)} of {len(jobs)} parts to do", flush=True)
        records = []
        with study_executor(arguments.jobs, path) as executor:
            for record in run_study(jobs, path, executor):
                records.append(record)
                if len(records) > len(jobs) - len(left):
                    print(_progress(record, len(records), len(jobs)), flush=True)
    return "\n".join(line for universe in source.plan.universes for line in table(universe, records))


def _progress(record: dict[str, object], done: int, of: int) -> str:
    kind = record.get("variant", record["part"])
    seed = f", seed {record['seed']}" if "seed" in record else ""
    return (
        f"{done}/{of} {record['universe']}, fold {record['fold']}, {kind}{seed}: {record['wall_seconds']:.0f} s, "
        f"{record['peak_rss_mb']:.0f} MiB"
    )


def accounts(universe: str, records: Sequence[Record]) -> dict[str, Account]:
    """Join folds: the account of each policy, by seed.

    A policy that is not in all folds is left out, as a rival that could not be fitted in one.
    """
    found: dict[str, dict[int, dict[int, Record]]] = {}
    for record in (one for one in records if one["universe"] == universe):
        for name, played in record["policies"].items():
            policy = f"{name}, {record['variant']}" if record["part"] == TRAINED else name
            found.setdefault(policy, {}).setdefault(record.get("seed", 0), {})[record["fold"]] = played
    folds = {record["fold"] for record in records}
    return {
        policy: (
            np.stack([np.concatenate([seed[fold]["daily"] for fold in sorted(folds)]) for seed in seeds.values()]),
            np.array([[seed[fold]["turnover"] for fold in sorted(folds)] for seed in seeds.values()]),
        )
        for policy, seeds in found.items()
        if all(seed.keys() == folds for seed in seeds.values())
    }


def table(universe: str, records: Sequence[Record]) -> Iterator[str]:
    """Format the accounts of a universe as a Markdown table, the folds of its champions as others, and how often these
    held the benchmark."""
    played = accounts(universe, records)
    names = ("return %", "over equal weight", "without its best fold", "tracking error %", "Sharpe", "drawdown %")
    yield f"\n| {universe} | {' | '.join(names)} | turnover |"
    yield "|---|" + "---:|" * (len(names) + 1)
    for policy, (daily, turnover) in played.items():
        curves = np.cumprod(np.concatenate((np.ones((len(daily), 1)), 1 + daily / 100), axis=1), axis=1)
        active = daily - played[EQUAL][0].mean(axis=0)
        of_folds = np.stack(np.split(active, turnover.shape[1], axis=1))
        rest = np.delete(of_folds, of_folds.mean(axis=(1, 2)).argmax(), axis=0)
        shown = [_tested(daily), _tested(active), _tested(np.concatenate([*rest], axis=1)), _tracking_error(active)]
        shown += [f"{metrics.sharpe(curves).mean():.2f}", f"{metrics.max_drawdown_percent(curves).mean():.1f}"]
        yield f"| {policy} | {' | '.join(shown)} | {turnover.mean():.1f} |"
    trained = [one for one in records if one["universe"] == universe and one["part"] == TRAINED]
    for variant in dict.fromkeys(one["variant"] for one in trained):
        yield from _folds(played[f"{CHAMPION}, {variant}"], played[EQUAL], trained, variant)
        shrinks = [one["evidence"]["shrink"] for one in trained if one["variant"] == variant]
        yield f"{variant}: {sum(shrink == 0 for shrink in shrinks)} of {len(shrinks)} champions held the benchmark"


def _folds(own: Account, equal: Account, trained: Sequence[Record], variant: str) -> Iterator[str]:
    """Format the folds of a variant: the champion beside equal weight on test days, and its evidence."""
    yield f"\n| {variant}, fold | over equal weight | tracking error % | orders on training days | believed % |"
    yield "|---|---:|---:|---:|---:|"
    active = np.split(own[0] - equal[0].mean(axis=0), own[1].shape[1], axis=1)
    for fold, days in enumerate(active):
        of_fold = [one["evidence"] for one in trained if (one["variant"], one["fold"]) == (variant, fold)]
        excess, error, shrink = (np.mean([one[name] for one in of_fold]) for name in ("excess", "error", "shrink"))
        worth = f"{excess:+.1f} (+- {error:.1f})"
        yield f"| {fold} | {_tested(days)} | {_tracking_error(days)} | {worth} | {100 * shrink:.0f} |"


def _tracking_error(active: Float64Array) -> str:
    """Format the deviation of (S, days) percent a day over equal weight, percent a year."""
    return f"{metrics.YEAR_ROOT * active.std(axis=1).mean():.1f}"


def _tested(daily: Float64Array) -> str:
    """Format (S, days) percent a day as percent a year."""
    test = yearly(mean_test(daily.mean(axis=0)))
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(test.mean, *test.interval)


if __name__ == "__main__":
    main()

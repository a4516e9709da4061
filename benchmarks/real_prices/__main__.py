"""What the trader is worth on real prices: `python -m benchmarks.real_prices --data FILE --investable FILE`.

An expanding walk-forward test as the plan says (`plan.toml`, or another by --plan): populations are trained on each
fold and played on its test days beside baselines and random pickers. Parts are jobs: --jobs
and --cluster do them side by side, each result is kept in OUT/parts.jsonl as soon as it is there, and a stopped study
goes on. Each run is written into OUT/runs.jsonl; a folder that was begun under another plan or on other data is
refused. At the end stand OUT/results.json and a table.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning.study import add_executor_flags, ending, read_results, run_study, study_executor
from benchmarks.real_prices.ledger import enter, require_same
from benchmarks.real_prices.parts import Source, all_jobs
from benchmarks.real_prices.plan import PLAN, read_plan
from benchmarks.real_prices.report import Report, markdown, results
from utils.runs.run_lock import RunLock
from utils.runs.run_log import write_json

PARTS, RESULTS = "parts.jsonl", "results.json"


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
    add_executor_flags(parser)
    arguments = parser.parse_args(words)
    with ending(parser):
        print(run(arguments))


def run(arguments: argparse.Namespace) -> str:
    """Do the study, write its files and return what is printed."""
    source = Source(arguments.data, arguments.investable, read_plan(arguments.plan))
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
        with study_executor(arguments, path, (source.data, source.investable)) as executor:
            for record in run_study(jobs, path, executor):
                records.append(record)
                if len(records) > len(jobs) - len(left):
                    print(_progress(record, len(records), len(jobs)), flush=True)
    report = Report(source.plan, records, looks)
    write_json(out / RESULTS, results(report))
    return f"{markdown(report)}\n\nwritten to {out}"


def _progress(record: dict[str, object], done: int, of: int) -> str:
    kind = record.get("variant", record["part"])
    seed = f", seed {record['seed']}" if "seed" in record else ""
    return (
        f"{done}/{of} {record['universe']}, fold {record['fold']}, {kind}{seed}: {record['wall_seconds']:.0f} s, "
        f"{record['peak_rss_mb']:.0f} MiB"
    )


if __name__ == "__main__":
    main()

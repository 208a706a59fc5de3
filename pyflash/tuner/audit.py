"""python -m pyflash.tuner.audit: what selection chooses beside the best built config, on random
problems.

Every built config that can run a problem is checked against the fp32 reference and timed, all in
turns. The journal has a line for each problem; a run that is started again goes on after the last.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pyflash.op.library import built_configs
from pyflash.op.selection import Problem, select, select_on
from pyflash.tuner.facts import facts_of
from pyflash.tuner.journal import Journal, Record, read_journal
from pyflash.tuner.model import gpu_of
from pyflash.tuner.problems import (
    parse_problem,
    problem_from_json,
    problem_text,
    problem_to_json,
    random_problems,
)
from pyflash.tuner.workload import Contender, Workload

GOOD = 1.03  # the time of the chosen config over the least


def audit(
    problems: list[Problem],
    journal: Journal,
    n_samples: int,
    report: Callable[[Record], None] = lambda _: None,
) -> list[Record]:
    """A record for each problem, those that the journal has figures of taken from there.

    A record has seconds (the median) and splits by short form, `selected` and `num_splits` with the
    reason, `best`, `ratio` (seconds of the choice over those of the best), and under `failed` the
    configs that were refused or wrong, each with why.
    """
    known = {record["name"]: record for record in journal.of_kind("audit") if "ratio" in record}
    records = []
    for problem in problems:
        name = problem_text(problem)
        record = known.get(name)
        if record is None:
            record = journal.append("audit", **_audit(problem, n_samples))
            torch.cuda.empty_cache()  # else the memory of its CUDA graphs is never given back
        records.append(record)
        report(record)
    return records


def replay(journal: Path) -> list[Record]:
    """Replays an audit: what selection in this process would choose, priced by the recorded times.
    A choice that was not measured, or not with as many splits, is an error.

    Raises ValueError for a journal without an audit, OSError for one that cannot be read.
    """
    records = read_journal(journal)
    gpu = next((r for r in records if r["kind"] == "run" and r["what"] == "audit"), None)
    if gpu is None:
        raise ValueError(f"{journal} holds no audit")
    measured = {r["name"]: r for r in records if r["kind"] == "audit" and "ratio" in r}
    return [_replayed(record, gpu["sm"], gpu["n_sms"]) for record in measured.values()]


def _replayed(record: Record, sm: int, n_sms: int) -> Record:
    problem = problem_from_json(record["problem"])
    selection = select_on(problem, sm, n_sms)
    chosen, seconds = str(selection.config), record["seconds"]
    facts = {"selected": chosen, "num_splits": selection.num_splits, "reason": selection.reason}
    splits = record.get("splits", {}).get(chosen, selection.num_splits)
    if chosen not in seconds or splits != selection.num_splits:
        kept = {name: value for name, value in record.items() if name != "ratio"}
        times = f"with {selection.num_splits} splits"
        return kept | facts | {"error": f"{chosen} was not measured {times}"}
    ratio = seconds[chosen] / seconds[record["best"]]
    return record | facts | {"selected_seconds": seconds[chosen], "ratio": ratio}


def table(records: list[Record]) -> Table:
    """A row for each problem, the worst choice first."""
    result = Table("ratio", "us", "best us", box=None, padding=(0, 1))
    for name in ("selected", "best", "problem"):
        result.add_column(name, overflow="fold")
    for record in sorted(records, key=lambda r: r.get("ratio", math.inf), reverse=True):
        if "ratio" not in record:
            result.add_row("-", "-", "-", "-", "-", f"{record['name']}: {record['error']}")
            continue
        best = record["best"]
        selected = f"{record['selected']} x{record['num_splits']}"
        result.add_row(
            f"{record['ratio']:.3f}",
            f"{record['selected_seconds'] * 1e6:.1f}",
            f"{record['seconds'][best] * 1e6:.1f}",
            selected,
            "the same" if best == record["selected"] else best,
            record["name"],
        )
    return result


def summary(records: list[Record]) -> str:
    """How many have figures, how many are good, the geometric mean, the worst."""
    ratios = [record["ratio"] for record in records if "ratio" in record]
    if not ratios:
        return "no problem was measured"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    good = sum(ratio <= GOOD for ratio in ratios)
    text = f"{len(ratios)} problems: {good} within {GOOD - 1:.0%} of the best built config"
    text += f", geometric mean {mean:.3f}, worst {max(ratios):.3f}"
    failed = len(records) - len(ratios)
    return text + (f"; {failed} could not be measured" if failed else "")


def _audit(problem: Problem, n_samples: int) -> dict[str, Any]:
    record: dict[str, Any] = {"name": problem_text(problem), "problem": problem_to_json(problem)}
    try:
        selection = select(problem)
        workload = Workload(problem)
        contenders, failed = _correct_contenders(workload)
        samples = workload.sample([Contender(""), *contenders], n_samples)
    except (ValueError, RuntimeError, torch.OutOfMemoryError) as error:
        return record | {"error": str(error).splitlines()[0]}
    called, *seconds = map(median, samples)
    by_config = {c.config: value for c, value in zip(contenders, seconds, strict=True)}
    chosen = str(selection.config)
    splits = {config: _splits_by_rule(problem, config) for config in by_config}
    # The chosen config under its name is the same kernel, but where a table chose the splits.
    if splits.get(chosen) != selection.num_splits:
        by_config |= {chosen: called}
        splits |= {chosen: selection.num_splits}
    best = min(by_config, key=by_config.__getitem__)
    return record | {
        "selected": chosen,
        "num_splits": selection.num_splits,
        "reason": selection.reason,
        "selected_seconds": by_config[chosen],
        "call_seconds": called,
        "best": best,
        "ratio": by_config[chosen] / by_config[best],
        "seconds": by_config,
        "splits": splits,
        "failed": failed,
        "n_samples": n_samples,
    }


def _splits_by_rule(problem: Problem, config: str) -> int:
    return select(replace(problem, options=problem.options | {"config": config})).num_splits


def _correct_contenders(workload: Workload) -> tuple[list[Contender], dict[str, str]]:
    """The built configs of the problem's dtype that compute it, and why others do not."""
    problem = workload.problem
    good, failed = [], {}
    for config in built_configs():
        if config.dtype != problem.dtype or config.d_head < problem.d_head:
            continue
        contender = Contender(str(config))
        try:
            workload.check(contender)
            good.append(contender)
        except (ValueError, RuntimeError, AssertionError) as error:
            failed[contender.config] = str(error).splitlines()[0]
    return good, failed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pyflash.tuner.audit", description=__doc__)
    parser.add_argument("--problems", type=int, default=40, help="random ones (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    parser.add_argument("--problem", action="append", metavar="TEXT", help="instead of random ones")
    parser.add_argument("--samples", type=int, default=15, help="of each config (default: 15)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="FILE.jsonl", help="the journal")
    where.add_argument(
        "--replay",
        type=Path,
        metavar="FILE.jsonl",
        help="measures nothing: what selection, as it is now, would choose there",
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="as torch names it"
    )
    arguments = parser.parse_args(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    device = arguments.device
    try:
        if arguments.replay:
            return _show(console, replay(arguments.replay))
        problems = [parse_problem(text, device) for text in arguments.problem or ()]
        problems = problems or random_problems(arguments.problems, arguments.seed, device)
        with Journal(arguments.out) as journal:
            facts = facts_of(gpu_of(torch.device(device)), torch.device(device))
            journal.append("run", what="audit", **facts, seed=arguments.seed)

            def report(record: Record) -> None:
                outcome = f"{record['ratio']:.3f}" if "ratio" in record else record["error"]
                console.print(f"{outcome}  {record['name']}", markup=False, soft_wrap=True)

            records = audit(problems, journal, arguments.samples, report)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return _show(console, records)


def _show(console: Console, records: list[Record]) -> int:
    console.print(table(records))
    console.print(summary(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())

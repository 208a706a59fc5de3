"""python -m pyflash.tuner.compare EXHAUSTIVE OTHER: the picks of a tuning run beside the best of a
run that measured every candidate, by the times of the latter, and what each has measured."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pyflash.tuner.builder import Kernel
from pyflash.tuner.journal import JournalError, Record, read_journal


@dataclass(frozen=True, slots=True)
class Pick:
    """What was picked for one problem, beside the best."""

    problem: str
    best: str
    pick: str
    ratio: float  # seconds of the pick over those of the best
    n_measured: int  # candidates, of n_candidates
    n_candidates: int
    n_samples: int
    n_samples_of_all: int


def compare(everything: list[Record], other: list[Record]) -> list[Pick]:
    """For each problem that both have a winner of. Raises JournalError where there is none, or
    where a pick was not measured in `everything`."""
    winners = _winners(other)
    picks = []
    for name, best in _winners(everything).items():
        if name not in winners:
            continue
        seconds, n_samples_of_all = _samples(everything, name)
        mine, n_samples = _samples(other, name)
        pick, best_of_all = Kernel.of_record(winners[name]), Kernel.of_record(best)
        # Splits are tried of the best few alone.
        timed = pick if pick in seconds else pick.compiled
        if timed not in seconds:
            raise JournalError(f"{name}: {pick} was not measured in the exhaustive journal")
        picks.append(
            Pick(
                problem=name,
                best=str(best_of_all),
                pick=str(pick),
                ratio=seconds[timed] / seconds[best_of_all],
                n_measured=len({kernel.compiled for kernel in mine}),
                n_candidates=best["n_candidates"],
                n_samples=n_samples,
                n_samples_of_all=n_samples_of_all,
            )
        )
    if not picks:
        raise JournalError("the journals have winners for no problem in common")
    return picks


def _winners(records: list[Record]) -> dict[str, Record]:
    return {record["problem"]: record for record in records if record["kind"] == "winner"}


def _samples(records: list[Record], name: str) -> tuple[dict[Kernel, float], int]:
    """Seconds of each kernel in its last rung, and the number of samples of all."""
    mine = [r for r in records if r["kind"] == "sample" and r["problem"] == name]
    ordered = sorted(mine, key=lambda record: record["rung"])
    return {Kernel.of_record(r): r["seconds"] for r in ordered}, sum(
        len(r["samples"]) for r in mine
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pyflash.tuner.compare", description=__doc__)
    parser.add_argument("exhaustive", type=Path, help="the journal of a run with all candidates")
    parser.add_argument("other", type=Path, help="the journal whose picks are judged")
    arguments = parser.parse_args(argv)
    try:
        picks = compare(read_journal(arguments.exhaustive), read_journal(arguments.other))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    table = Table("ratio", "measured", "samples", box=None, padding=(0, 1))
    for column in ("pick", "best", "problem"):
        table.add_column(column, overflow="fold")
    for pick in picks:
        table.add_row(
            f"{pick.ratio:.3f}",
            f"{pick.n_measured}/{pick.n_candidates}",
            f"{pick.n_samples}/{pick.n_samples_of_all}",
            pick.pick,
            "the same" if pick.best == pick.pick else pick.best,
            pick.problem,
        )
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

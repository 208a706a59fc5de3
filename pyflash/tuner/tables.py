"""python -m pyflash.tuner.tables JOURNAL... --out TABLE.json: a tuned table from journals.

Journals of `pyflash tune` give choices: for the class of each tuned problem its winner; --choices
keeps those of a table, which may be measured by hand. Those of `pyflash.tuner.audit`, and the
samples of `pyflash tune`, give costs: of each config, what a launch, a tile, a step and memory
cost, fitted to the times of many problems.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyflash.op import tables
from pyflash.op.selection import class_of
from pyflash.tuner.audit import GOOD
from pyflash.tuner.costs import costs_of
from pyflash.tuner.journal import Record, read_journal
from pyflash.tuner.model import CPU
from pyflash.tuner.problems import problem_from_json

# A winner stands for problems with pairs, rows and keys within this factor of its own; with many
# rows not for longer ones with more blocks of this size, which tiles of another size may hold.
NEAR = 2**0.25
BLOCK = 64


def table_of(journals: Sequence[Path], name: str | None = None, costs: bool = True) -> tables.Table:
    """The table of these journals' GPU. Raises ValueError where they are of several, or of the CPU,
    or hold nothing to make a table of; OSError for a file that cannot be read."""
    records = [record for path in journals for record in read_journal(path)]
    runs = [record for record in records if record["kind"] == "run"]
    gpus = {(run["gpu"], run["sm"], run["n_sms"]) for run in runs}
    if len(gpus) != 1:
        known = ", ".join(sorted(gpu for gpu, *_ in gpus)) or "no run"
        raise ValueError(f"a table is of one GPU: these journals hold {known}")
    ((gpu, sm, n_sms),) = gpus
    if gpu == CPU:
        raise ValueError(
            "these journals were measured on the CPU, where nothing is selected by tables"
        )
    choices = choices_of(records)
    fitted, judgements = costs_of(records, sm, n_sms) if costs else ([], {})
    if not choices and not fitted:
        raise ValueError("these journals hold no winner, and too few problems to fit costs to")
    return {
        "format": tables.FORMAT,
        "name": name or gpu,
        "gpu": gpu,
        "sm": sm,
        "n_sms": n_sms,
        "made": {
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "journals": [path.name for path in journals],
            "environments": list(
                {str(run["environment"]): run["environment"] for run in runs}.values()
            ),
            "kernels": sorted({run["kernels"] for run in runs}),
            "costs": judgements,
        },
        "choices": choices,
        "costs": fitted,
    }


def merged(new: tables.Table, old: tables.Table) -> tables.Table:
    """`new` with the rows of `old`, a table of the same GPU, that it does not replace."""
    classes = {tables.class_of(row["class"]) for row in new["choices"]}
    priced = {(row["config"], row["kind"]) for row in new["costs"]}
    kept = [row for row in old.get("choices", ()) if tables.class_of(row["class"]) not in classes]
    costs = [row for row in old.get("costs", ()) if (row["config"], row["kind"]) not in priced]
    return new | {"choices": [*new["choices"], *kept], "costs": [*new["costs"], *costs]}


def choices_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each problem that was won, the latest winner of each. Selection reads no table for
    a variant, so that its winners are left out."""
    found = [r for r in records if r["kind"] == "winner" and not r.get("variant")]
    winners = {r["problem"]: r for r in found}
    rows = []
    for name, record in winners.items():
        problem = problem_from_json(record["values"])
        known = class_of(problem)
        rows.append(
            {
                "class": {
                    "dtype": problem.dtype.name,
                    "d_head": problem.d_head,
                    "features": known.features,
                    "packed": problem.packed,
                    "pairs": _near(known.pairs),
                    "rows": _near_length(known.rows, known.kind),
                    "keys": _near_length(known.keys, known.kind),
                },
                "config": record["config"],
                "num_splits": record.get("num_splits", 0),
                "problem": name,
                "microseconds": round(record["seconds"] * 1e6, 3),
                "spread": record["spread"],
                "runners_up": {
                    config: round(seconds * 1e6, 3)
                    for config, seconds in record["runners_up"].items()
                },
                "measured": record["n_measured"],
                "candidates": record["n_candidates"],
                "time": record["time"],
            }
        )
    return rows


def _near(value: int) -> list[int]:
    return [math.ceil(value / NEAR), math.floor(value * NEAR)]


def _near_length(length: int, kind: str) -> list[int]:
    first, last = _near(length)
    return [first, last if kind == "few" else min(last, math.ceil(length / BLOCK) * BLOCK)]


def _onto(kept: tables.Table, table: tables.Table, kinds: Sequence[str]) -> tables.Table:
    """`table` with its costs of these kinds alone, and the choices and other costs of `kept`."""
    made, made_before = table["made"], kept.get("made", {})
    journals = {"journals": made["journals"]}
    judged = {kind: of | journals for kind, of in made["costs"].items() if kind in kinds}
    before = {k: of for k, of in made_before.get("costs", {}).items() if k not in kinds}
    of_others = [name for of in before.values() for name in of.get("journals", ())]
    made = made | {
        "journals": list(dict.fromkeys([*made["journals"], *of_others])),
        "costs": judged | before,
        "choices": made_before.get("choices", []),
    }
    fitted = [row for row in table["costs"] if row["kind"] in kinds]
    others = [row for row in kept.get("costs", ()) if row["kind"] not in kinds]
    return merged(table | {"made": made, "costs": fitted}, kept | {"costs": others})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pyflash.tuner.tables", description=__doc__)
    parser.add_argument("journals", type=Path, nargs="+", metavar="JOURNAL")
    parser.add_argument("--out", type=Path, required=True, metavar="TABLE.json")
    parser.add_argument("--name", help="of the table; the GPU's by default")
    parser.add_argument("--no-costs", action="store_true", help="choices alone")
    parser.add_argument(
        "--choices", type=Path, metavar="TABLE.json", help="keep the choices of this table, too"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=tables.KINDS,
        default=tables.KINDS,
        help="of problems that costs are fitted for; others stay as in --choices (default: all)",
    )
    arguments = parser.parse_args(argv)
    try:
        table = table_of(arguments.journals, arguments.name, costs=not arguments.no_costs)
        if arguments.choices:
            table = _onto(tables.read_table(arguments.choices), table, arguments.kinds)
        tables.write_table(arguments.out, table, is_private=False)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: {len(table['choices'])} choices, {len(table['costs'])} costs")
    for kind, judged in table["made"]["costs"].items():
        if kind not in arguments.kinds:
            continue
        outcome = "kept" if judged["kept"] else "left out"
        print(
            f"  {kind:6} {outcome}: of {judged['problems']} problems {judged['held_out_good']} are "
            f"within {GOOD - 1:.0%} of the best with costs that have not seen them, geometric mean "
            f"{judged['held_out']:.3f}; {judged['selected_good']} as selected then, "
            f"{judged['selected']:.3f}"
        )
    for row in table["costs"]:
        if row["kind"] not in arguments.kinds:
            continue
        print(f"  {row['kind']:6} error {row['error']:.1%} of {row['problems']}: {row['config']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

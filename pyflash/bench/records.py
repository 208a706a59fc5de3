"""Records of a run: JSON lines, CSV, tables.

A record is a dictionary of plain values, one for each contender and problem, with the environment
it was measured in. Figures and pages are made of records, whether they were measured now or read
from a file.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]

_COLUMNS = (
    "time", "device", "what", "dtype", "batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k",
    "d_head", "causal", "contender", "short_form", "status", "error", "bound", "seconds", "spread",
    "n_samples", "tflops", "gb_per_second", "ratio", "percent_of_gemm", "host_microseconds",
)  # fmt: skip


def stamped(
    bench: str, records: Iterable[Record], environment: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """The records with what they were measured by, when and on what."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    head = {"bench": bench, "time": now, "environment": dict(environment)}
    return [head | dict(record) for record in records]


def append(path: Path, records: Iterable[Record]) -> None:
    """Adds a line of JSON for each record, all in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    with path.open("a") as file:
        file.write(text)


def read(path: Path, bench: str = "attention") -> list[dict[str, Any]]:
    """The records of that bench in a file of JSON lines, in order.

    Raises OSError, and ValueError naming file and line for text that is no record.
    """
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
            if record["bench"] == bench:
                records.append(record)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: expected a record of pyflash bench") from None
    if not records:
        raise ValueError(f"{path}: no records of {bench}")
    return records


def is_causal(record: Record) -> bool:
    return bool(record["problem"]["options"].get("causal"))


def to_csv(records: Iterable[Record]) -> str:
    """A header and a row for each record; what a record does not have stays empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for record in records:
        cells = {**record["problem"], **(record["timing"] or {}), **record}
        writer.writerow(
            cells | {"causal": is_causal(record), "device": record["environment"]["device"]}
        )
    return file.getvalue()


def title(problem: Mapping[str, Any]) -> str:
    """A problem in words."""
    lengths = f"seqlen {problem['seqlen_q']}"
    if problem["seqlen_q"] != problem["seqlen_k"]:
        lengths = f"seqlen_q {problem['seqlen_q']}, seqlen_k {problem['seqlen_k']}"
    return (
        f"{problem['dtype']}, batch {problem['batch']}, {lengths}, "
        f"heads {problem['heads_q']}, heads_kv {problem['heads_kv']}, d_head {problem['d_head']}"
        f"{', causal' if problem['options'].get('causal') else ''}"
    )


def name(record: Record) -> str:
    """Of the contender, and of the config that was selected for it."""
    config = record["short_form"]
    named = record["contender"] in (config, None)
    return record["contender"] if named or not config else f"{record['contender']}  {config}"


def table(records: Iterable[Record]) -> str:
    """A row for each contender: its figures, or why there are none."""
    header = (
        f"{'ms':>9} {'spread':>7} {'TFLOP/s':>8} {'GB/s':>7} {'ratio':>6} {'% GEMM':>7} "
        f"{'host us':>8} {'error':>8}  contender"
    )
    return "\n".join([header, *map(_row, records)])


def _row(record: Record) -> str:
    timing = record["timing"]
    if timing is None:
        error, bound = (_or_dash(record[key], ".1e") for key in ("error", "bound"))
        return f"{name(record)}: {record['status']} (error {error}, bound {bound})"
    return (
        f"{timing['seconds'] * 1e3:9.4f} {timing['spread']:7.1%} {record['tflops']:8.2f} "
        f"{_or_dash(record['gb_per_second'], '.1f'):>7} {_or_dash(record['ratio'], '.3f'):>6} "
        f"{record['percent_of_gemm']:7.1f} {_or_dash(record['host_microseconds'], '.1f'):>8} "
        f"{record['error']:8.1e}  {name(record)}"
    )


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def markdown(records: Sequence[Record], ours: str, over: str) -> str:
    """A row for each head dimension and mask, a column for each length: TFLOP/s of the contender
    `ours` / its ratio to `over`.

    Raises ValueError where the records have no figures of either.
    """
    rates: dict[tuple[str, tuple[int, bool, int]], float] = {}
    for record in records:
        problem = record["problem"]
        cell = (problem["d_head"], is_causal(record), problem["seqlen_k"])
        if record["tflops"]:
            rates[record["contender"], cell] = record["tflops"]
    cells = [cell for contender, cell in rates if contender == ours and (over, cell) in rates]
    if not cells:
        raise ValueError(f"no figures of {ours} and {over} for the same problem")
    lengths = sorted({length for _, _, length in cells})
    lines = [
        f"| d_head | {' | '.join(map(short_length, lengths))} |",
        f"|---|{'---|' * len(lengths)}",
    ]
    for d_head, causal in dict.fromkeys(cell[:2] for cell in cells):
        row = []
        for length in lengths:
            cell = (d_head, causal, length)
            rate, other = rates.get((ours, cell)), rates.get((over, cell))
            row.append(f"{rate:.0f} / {rate / other:.2f}" if rate and other else "")
        lines.append(f"| {d_head} {'causal' if causal else 'full'} | {' | '.join(row)} |")
    return "\n".join(lines)


def short_length(length: int) -> str:
    return f"{length // 1024}k" if length and length % 1024 == 0 else str(length)

"""Records of a run: JSON lines, CSV.

A record is a dictionary of plain values, one for each contender and problem, with the environment
it was measured in. Figures and pages are made of records, whether they were measured now or read
from a file.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyflash.op.options import DEFAULTS, OPTIONS

Record = Mapping[str, Any]

OURS = "pyflash"  # the contender that runs the config that is selected

_COLUMNS = (
    "time", "device", "what", "dtype", "batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k",
    "d_head", *OPTIONS, "packed", "total_q", "total_k", "page_size", "variant",
    "contender", "short_form",
    "status", "error", "bound", "seconds", "spread", "n_samples", "tflops", "gb_per_second",
    "ratio", "percent_of_gemm", "host_microseconds", "torch_device", "driver", "cuda", "torch",
    "python", "commit",
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


def to_csv(records: Iterable[Record]) -> str:
    """A header and a row for each record; what a record does not have stays empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for record in records:
        problem = record["problem"]
        cells = {**problem, **(record["timing"] or {}), **record, **record["environment"]}
        options = DEFAULTS | problem["options"]
        writer.writerow(cells | options | {"torch_device": problem["device"]})
    return file.getvalue()

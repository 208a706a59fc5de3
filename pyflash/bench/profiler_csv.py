"""The CSV files of the CUTLASS profiler: read, written, joined.

The profiler writes a row for each kernel and problem. Runtime is in milliseconds, GB/s are GiB/s,
and the columns between Status and Bytes are the arguments of one kind of operation, which differ
between versions. What a comparison needs is read by name; all else is kept as text.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# The columns for a GEMM, by the profiler of CUTLASS 4.2.0.
COLUMNS = (
    "Problem", "Provider", "OperationKind", "Operation", "Disposition", "Status", "gemm_kind", "m",
    "n", "k", "A", "B", "C", "D", "alpha", "beta", "split_k_mode", "split_k_slices", "batch_count",
    "raster_order", "runtime_input_datatype_a", "runtime_input_datatype_b", "use_pdl",
    "enable_sm90_mixed_dtype_shuffle_test", "swizzle_size", "op_class", "accum", "cta_m", "cta_n",
    "cta_k", "cluster_m", "cluster_n", "cluster_k", "cluster_m_fallback", "cluster_n_fallback",
    "cluster_k_fallback", "stages", "warps_m", "warps_n", "warps_k", "inst_m", "inst_n", "inst_k",
    "min_cc", "max_cc", "Bytes", "Flops", "Flops/Byte", "Runtime", "GB/s", "GFLOPs",
)  # fmt: skip
REQUIRED = (
    "OperationKind", "Operation", "Disposition", "Status", "m", "n", "k", "Bytes", "Flops",
    "Runtime",
)  # fmt: skip
# `passed` was verified, `not_verified` was told not to; every other disposition is a failure.
GOOD_DISPOSITIONS = ("passed", "not_verified")
# The profiler prints 6 significant digits.
_DIGITS = 6


class ProfileError(ValueError):
    """A file that is not a profile as a whole."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel that ran one problem. `cells` has every column as it is written."""

    provider: str
    operation_kind: str
    operation: str
    m: int
    n: int
    k: int
    batch_count: int
    bytes: int
    flops: int
    seconds: float
    min_cc: int | None
    verified: bool
    cells: dict[str, str] = field(repr=False, hash=False)

    @property
    def gflops(self) -> float:
        """GFLOP/s, the column GFLOPs."""
        return self.flops / self.seconds / 1e9

    @property
    def gib_per_second(self) -> float:
        """GiB/s, the column GB/s."""
        return self.bytes / self.seconds / 2**30

    @property
    def problem(self) -> tuple[str, int, int, int, int]:
        return (self.operation_kind, self.m, self.n, self.k, self.batch_count)


@dataclass(frozen=True, slots=True)
class Refused:
    line: int  # in the file, from 1
    operation: str  # "" where it is not known
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.operation or '?'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a file holds. `note` tells in which columns it differs from 4.2.0; "" where in none."""

    name: str
    rows: tuple[Row, ...]
    refused: tuple[Refused, ...]
    note: str


def read(path: Path) -> Profile:
    """A file of the profiler, or one that holds `as_text`.

    Raises ProfileError for one that is missing, empty, not text, or without a header that has the
    `REQUIRED` columns. Rows that did not run, failed their verification or make no sense are in
    `refused`, each with its reason.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read as a CSV file: {error}") from None
    return parse(text, path.name)


def parse(text: str, name: str) -> Profile:
    """As `read`, of the text of a file called `name`. Headers may come again, as they do where
    files were put together."""
    rows: list[Row] = []
    refused: list[Refused] = []
    header: list[str] | None = None
    notes: list[str] = []
    reader = csv.reader(io.StringIO(text.replace("\0", "")))
    for cells in reader:
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            continue
        if "Operation" in cells and "Runtime" in cells:
            header = cells
            notes.append(_check_header(header, name))
        elif header is None:
            raise ProfileError(
                f"{name}: not a CSV file of the CUTLASS profiler: line {reader.line_num} is "
                f"{','.join(cells)[:80]!r}, expected a header with Operation and Runtime"
            )
        else:
            parsed = _parse_row(header, cells, reader.line_num)
            (rows if isinstance(parsed, Row) else refused).append(parsed)
    if header is None:
        raise ProfileError(f"{name}: empty")
    return Profile(name, tuple(rows), tuple(refused), "; ".join(dict.fromkeys(filter(None, notes))))


def _check_header(header: Sequence[str], name: str) -> str:
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise ProfileError(
            f"{name}: no column {', '.join(missing)}: written by another version of the profiler, "
            "or not by it"
        )
    absent = [column for column in COLUMNS if column not in header]
    new = [column for column in header if column not in COLUMNS]
    parts = [
        f"{word} {', '.join(columns)}"
        for word, columns in (("without", absent), ("with", new))
        if columns
    ]
    return f"not the columns of CUTLASS 4.2.0: {' and '.join(parts)}" if parts else ""


def _parse_row(header: Sequence[str], cells: Sequence[str], line: int) -> Row | Refused:
    operation = cells[header.index("Operation")] if len(cells) > header.index("Operation") else ""
    if len(cells) != len(header):
        return Refused(line, operation, f"{len(cells)} cells, expected {len(header)}")
    values = dict(zip(header, cells, strict=True))
    if values["Status"] != "success":
        return Refused(line, operation, f"status {values['Status'] or 'empty'}")
    if values["Disposition"] not in GOOD_DISPOSITIONS:
        return Refused(line, operation, f"disposition {values['Disposition'] or 'empty'}")
    try:
        row = Row(
            provider=values.get("Provider", ""),
            operation_kind=values["OperationKind"],
            operation=operation,
            **{name: _count(values, name) for name in ("m", "n", "k")},
            batch_count=_count(values, "batch_count") if values.get("batch_count") else 1,
            bytes=_count(values, "Bytes"),
            flops=_count(values, "Flops"),
            seconds=_positive(values, "Runtime") / 1e3,
            min_cc=_count(values, "min_cc") if values.get("min_cc") else None,
            verified=values["Disposition"] == "passed",
            cells=values,
        )
        for column, expected in (("GFLOPs", row.gflops), ("GB/s", row.gib_per_second)):
            if values.get(column):
                _expect(column, _positive(values, column), expected)
    except ValueError as error:
        return Refused(line, operation, str(error))
    return row


def _count(values: dict[str, str], column: str) -> int:
    text = values[column]
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{column} is {text!r}, expected a positive integer")
    return int(text)


def _positive(values: dict[str, str], column: str) -> float:
    text = values[column]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{column} is {text!r}, expected a positive number")
    return number


def _expect(column: str, written: float, computed: float) -> None:
    """The profiler rounds Runtime and the rate, each to 6 digits."""
    if not math.isclose(written, computed, rel_tol=3 * 10 ** (1 - _DIGITS)):
        raise ValueError(f"{column} is {written:g}, but bytes, FLOPs and runtime give {computed:g}")


def number(value: float) -> str:
    """As the profiler prints one: 6 significant digits."""
    return f"{value:.{_DIGITS}g}"


def as_text(rows: Iterable[dict[str, str]]) -> str:
    """A CSV file of these cells in the columns of 4.2.0; what a row does not have stays empty.

    Raises ValueError for a column that 4.2.0 does not have.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for index, row in enumerate(rows, 1):
        writer.writerow({"Problem": str(index)} | row)
    return file.getvalue()


def measured_cells(n_bytes: int, flops: int, seconds: float) -> dict[str, str]:
    """The last six columns."""
    return {
        "Bytes": str(n_bytes),
        "Flops": str(flops),
        "Flops/Byte": str(flops // n_bytes),
        "Runtime": number(seconds * 1e3),
        "GB/s": number(n_bytes / seconds / 2**30),
        "GFLOPs": number(flops / seconds / 1e9),
    }


@dataclass(frozen=True, slots=True)
class Joined:
    """The same operation and problem in two files; None where one has it not."""

    problem: tuple[str, int, int, int, int]
    operation: str
    first: Row | None
    second: Row | None

    @property
    def speedup(self) -> float | None:
        """The speed of the second over that of the first."""
        if self.first is None or self.second is None:
            return None
        return self.first.seconds / self.second.seconds


def join(first: Profile, second: Profile) -> list[Joined]:
    """Every operation and problem of either file, in order of problem, then fastest first. Of
    several rows for one operation and problem the fastest counts."""
    fastest = [_fastest(profile.rows) for profile in (first, second)]
    keys = {**fastest[0], **fastest[1]}
    joined = [
        Joined(problem, operation, *(rows.get((problem, operation)) for rows in fastest))
        for problem, operation in keys
    ]
    return sorted(joined, key=lambda j: (j.problem, _seconds(j), j.operation))


def _fastest(rows: Iterable[Row]) -> dict[tuple[tuple[str, int, int, int, int], str], Row]:
    best: dict[tuple[tuple[str, int, int, int, int], str], Row] = {}
    for row in rows:
        key = (row.problem, row.operation)
        if key not in best or row.seconds < best[key].seconds:
            best[key] = row
    return best


def _seconds(joined: Joined) -> float:
    return min(row.seconds for row in (joined.first, joined.second) if row)

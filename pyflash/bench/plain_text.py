"""A run as text: a table for each problem, and a markdown table of a contender's speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyflash.bench.measurements import Series, differing, labels, measurements, series, titles
from pyflash.bench.records import Record


def tables(records: Iterable[Record]) -> str:
    """A table for each measurement, below its title."""
    found = measurements(records)
    pairs = zip(titles(found), found, strict=True)
    return "\n".join(f"{title}\n{table(one.records)}\n" for title, one in pairs)


def name(record: Record) -> str:
    """Names the contender, and the config that was selected for it."""
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
    """A row for each head dimension and mask, and whatever else differs but length; a column for
    each length: TFLOP/s of the contender `ours` / its ratio to `over`, of one measurement. Above
    it, what all rows share.

    Raises ValueError where the records have no figures of both for one problem.
    """
    rows = [(one.facts, cells) for one in series(records) if (cells := _cells(one, ours, over))]
    if not rows:
        raise ValueError(f"no figures of {ours} and {over} for the same problem in one run")
    lengths = sorted({length for _, cells in rows for length in cells})
    facts = [
        about | {"row": f"{about['d_head'].split()[-1]} {about['variant']}"} for about, _ in rows
    ]
    told = [name for name in facts[0] if name not in ("d_head", "variant", "row")]
    shared = [facts[0][name] for name in told if name not in differing(facts)]
    lines = [
        f"TFLOP/s of {ours} / ratio to {over}: {', '.join(filter(None, shared))}",
        "",
        f"| d_head | {' | '.join(map(short_length, lengths))} |",
        f"|---|{'---|' * len(lengths)}",
    ]
    names = labels(facts, ["row", "rest", "seqlen_q"])
    for name, (_, cells) in zip(names, rows, strict=True):
        lines.append(_line([name, *(cells.get(length, "") for length in lengths)]))
    return "\n".join(lines)


def _cells(one: Series, ours: str, over: str) -> dict[int, str]:
    cells = {}
    for length, measurement in one.of_length.items():
        rate, other = (record and record["tflops"] for record in map(measurement.of, (ours, over)))
        if rate and other:
            cells[length] = f"{rate:.0f} / {rate / other:.2f}"
    return cells


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def short_length(length: int) -> str:
    return f"{length // 1024}k" if length and length % 1024 == 0 else str(length)

"""Fused attention beside its two GEMMs: times, rates, bytes, what fusion saves, the roofline."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflash.bench import work
from pyflash.bench.attention_rows import KIND
from pyflash.bench.gpus import Gpu
from pyflash.bench.profiler_csv import Profile, Row
from pyflash.bench.work import Gemm
from pyflash.ui.html import bars, bullets, scrolling, table_html
from pyflash.ui.page import Paged, Sections
from pyflash.ui.tables import Table

if TYPE_CHECKING:
    from rich.console import Group

    from pyflash.op.selection import Problem

# Kernels by their atoms: the least compute capability of a profiler's row.
ATOMS = {"any atoms": (0, 9999), "SM80 atoms": (80, 89), "SM90 atoms": (90, 99)}


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel, or the two GEMMs one after the other."""

    what: str
    kernel: str
    provider: str
    seconds: float
    flops: int
    bytes: int
    roofline_seconds: float | None = None  # None: the GPU is not known
    bound: str | None = None  # of the roofline: "compute" or "memory"

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12

    @property
    def gb_per_second(self) -> float:
        return self.bytes / self.seconds / 1e9

    @property
    def percent_of_roofline(self) -> float | None:
        return 100 * self.roofline_seconds / self.seconds if self.roofline_seconds else None


@dataclass(frozen=True, slots=True)
class Saving:
    """What the fastest fused kernel saves over an unfused sum."""

    over: str
    bytes: int  # less traffic
    seconds: float  # less time
    ratio: float  # unfused time over fused


@dataclass(frozen=True, slots=True)
class Comparison(Paged):
    """All figures of one problem. An unfused sum has the attention's FLOPs, so that its TFLOP/s
    compare with a fused kernel's; it leaves out the softmax pass between the GEMMs, for which
    `softmax_seconds` is the least time that memory allows (None: the GPU is not known)."""

    title: str
    gpu: Gpu | None
    gemms: list[Line]
    sums: list[Line]
    fused: list[Line]
    savings: list[Saving]
    softmax_bytes: int
    softmax_seconds: float | None
    refused: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with the rates."""
        lines = {
            name: [_line_dict(line) for line in getattr(self, name)]
            for name in ("gemms", "sums", "fused")
        }
        return dataclasses.asdict(self) | lines

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __rich__(self) -> Group:
        return renderable(self)

    @property
    def page_title(self) -> str:
        return f"Attention beside its GEMMs: {self.title}"

    @property
    def answer(self) -> str:
        if not self.fused:
            return "No fused kernel to compare with."
        over = min(self.savings, key=lambda saving: saving.ratio)
        return (
            f"The fused kernel takes {self.fused[0].seconds * 1e3:,.3f} ms: {over.ratio:.2f} times "
            f"the speed of the two GEMMs alone, with {over.bytes / 1e6:,.1f} MB less traffic."
        )

    def sections(self) -> Sections:
        times = {line.what: line.seconds * 1e3 for line in (*self.sums, *self.fused[:1])}
        yield "time", scrolling(bars(times, "ms"), "milliseconds of each")
        yield "figures", table_html(table_of(self))
        yield "what fusion saves", bullets(notes(self))


def compare(
    problem: Problem,
    gemm_profiles: Iterable[Profile],
    fused: Iterable[Profile],
    gpu: Gpu | None = None,
) -> Comparison:
    """Puts the rows of `gemm_profiles` that are QK^T or PV of `problem` beside the rows of `fused`
    that are its attention, each figure from the row itself.

    Raises ValueError where either GEMM has no row, and for a window or packed sequences, whose
    FLOPs are not those of full or causal attention.
    """
    work.is_causal(problem)
    gemm_profiles, fused = list(gemm_profiles), list(fused)
    refused = [f"{p.name}: {r}" for p in (*gemm_profiles, *fused) for r in p.refused]
    rows = [row for profile in gemm_profiles for row in profile.rows]
    gemms, sums = [], []
    for atoms, (least, most) in ATOMS.items():
        of_atoms = [row for row in rows if least <= (row.min_cc or 0) <= most]
        best = [_fastest_gemm(gemm, of_atoms) for gemm in work.gemms_of(problem)]
        for gemm, row in zip(work.gemms_of(problem), best, strict=True):
            if row is not None:
                gemms.append(_line(f"{gemm.name}, {atoms}", row, gpu))
            elif atoms == "any atoms":
                raise ValueError(
                    f"no row of {gemm.name} (m {gemm.m}, n {gemm.n}, k {gemm.k}, batch_count "
                    f"{gemm.batch_count}, {gemm.A} {gemm.B}) among {len(rows)}: "
                    f"{'; '.join(refused) or 'other problems'}"
                )
        if all(best):
            sums.append(_sum(atoms, [row for row in best if row], problem, gpu))
    fused_lines = [
        _line("fused", row, gpu)
        for profile in fused
        for row in profile.rows
        if is_attention(row, problem)
    ]
    fused_lines.sort(key=lambda line: line.seconds)
    softmax = work.softmax_bytes(problem)
    return Comparison(
        title=title(problem),
        gpu=gpu,
        gemms=gemms,
        sums=sums,
        fused=fused_lines,
        savings=_savings(sums, fused_lines),
        softmax_bytes=softmax,
        softmax_seconds=gpu.roofline_seconds(0, softmax) if gpu else None,
        refused=refused,
    )


def title(problem: Problem) -> str:
    return (
        f"{problem.dtype.name}, batch {problem.batch}, heads {problem.heads_q}, heads_kv "
        f"{problem.heads_kv}, seqlen_q {problem.seqlen_q}, seqlen_k {problem.seqlen_k}, d_head "
        f"{problem.d_head}{', causal' if work.is_causal(problem) else ''}"
    )


def is_gemm(row: Row, gemm: Gemm) -> bool:
    """Whether a row ran this GEMM; layouts are held against those that the row tells."""
    shape = (row.m, row.n, row.k, row.batch_count) == (gemm.m, gemm.n, gemm.k, gemm.batch_count)
    layouts = all(
        row.cells.get(name, want) == want for name, want in (("A", gemm.A), ("B", gemm.B))
    )
    return row.operation_kind == "gemm" and shape and layouts


def is_attention(row: Row, problem: Problem) -> bool:
    mask = "causal" if work.is_causal(problem) else "full"
    return row.problem == (
        KIND,
        problem.seqlen_q,
        problem.seqlen_k,
        problem.d_head,
        problem.batch * problem.heads_q,
    ) and (row.cells.get("A"), row.cells.get("gemm_kind")) == (
        f"{work.DTYPE_NAMES[problem.dtype]}:row",
        mask,
    )


def _fastest_gemm(gemm: Gemm, rows: Sequence[Row]) -> Row | None:
    return min((r for r in rows if is_gemm(r, gemm)), key=lambda r: r.seconds, default=None)


def _line(what: str, row: Row, gpu: Gpu | None) -> Line:
    return _with_roofline(
        Line(what, row.operation, row.provider, row.seconds, row.flops, row.bytes), gpu
    )


def _sum(atoms: str, rows: Sequence[Row], problem: Problem, gpu: Gpu | None) -> Line:
    providers = " + ".join(dict.fromkeys(row.provider for row in rows))
    line = Line(
        f"unfused, {atoms}",
        "QK^T, then PV",
        providers,
        seconds=sum(row.seconds for row in rows),
        flops=work.attention_flops(problem),
        bytes=sum(row.bytes for row in rows),
    )
    if gpu is None:
        return line
    bounds = {gpu.bound(row.flops, row.bytes) for row in rows}
    return dataclasses.replace(
        line,
        roofline_seconds=sum(gpu.roofline_seconds(row.flops, row.bytes) for row in rows),
        bound=" and ".join(sorted(bounds)),
    )


def _with_roofline(line: Line, gpu: Gpu | None) -> Line:
    if gpu is None:
        return line
    work_done = (line.flops, line.bytes)
    return dataclasses.replace(
        line, roofline_seconds=gpu.roofline_seconds(*work_done), bound=gpu.bound(*work_done)
    )


def _savings(sums: Sequence[Line], fused: Sequence[Line]) -> list[Saving]:
    if not fused:
        return []
    best = fused[0]
    return [
        Saving(
            over=line.what,
            bytes=line.bytes - best.bytes,
            seconds=line.seconds - best.seconds,
            ratio=line.seconds / best.seconds,
        )
        for line in sums
    ]


def _line_dict(line: Line) -> dict[str, Any]:
    rates = ("tflops", "gb_per_second", "percent_of_roofline")
    return dataclasses.asdict(line) | {name: getattr(line, name) for name in rates}


# Text


def renderable(comparison: Comparison) -> Group:
    """For rich: a row for each GEMM, sum and fused kernel, then what fusion saves."""
    from rich.console import Group
    from rich.text import Text

    return Group(table_of(comparison), *map(Text, notes(comparison)))


def table_of(comparison: Comparison) -> Table:
    columns = ("", "ms", "TFLOP/s", "MB", "GB/s", "roofline ms", "% of it", "kernel")
    lines = [*comparison.gemms, *comparison.sums, *comparison.fused]
    return Table.of(comparison.title, columns, [line_cells(line) for line in lines])


def line_cells(line: Line) -> list[str]:
    roofline = line.roofline_seconds
    percent = line.percent_of_roofline
    return [
        line.what,
        f"{line.seconds * 1e3:.4f}",
        f"{line.tflops:.1f}",
        f"{line.bytes / 1e6:,.1f}",
        f"{line.gb_per_second:,.0f}",
        f"{roofline * 1e3:.4f} ({line.bound})" if roofline else "",
        f"{percent:.1f}" if percent else "",
        f"{line.provider}: {line.kernel}",
    ]


def notes(comparison: Comparison) -> list[str]:
    """Sentences below the table: savings, what the sums leave out, and what was refused."""
    lines = [
        f"fused over {s.over}: {s.ratio:.2f} times as fast, {s.bytes / 1e6:,.1f} MB less traffic"
        for s in comparison.savings
    ]
    if not comparison.fused:
        lines.append("no fused kernel to compare with")
    softmax = f"{comparison.softmax_bytes / 1e6:,.1f} MB"
    if comparison.softmax_seconds:
        softmax += f", at least {comparison.softmax_seconds * 1e3:.4f} ms"
    lines.append(f"not in the unfused sums: the softmax pass between the GEMMs, {softmax}")
    if comparison.gpu is None:
        lines.append("no roofline: this GPU's peak rates are not known")
    return [*lines, *(f"refused: {text}" for text in comparison.refused)]

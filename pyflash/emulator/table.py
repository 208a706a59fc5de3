"""A report as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from pyflash.config import parse as parse_config
from pyflash.emulator.timeline import as_text as timeline_text
from pyflash.emulator.traffic import GlobalTraffic, SharedTraffic
from pyflash.op.options import DEFAULTS, TENSORS

if TYPE_CHECKING:
    from pyflash.emulator.report import Report

_WIDTH = 110
_ROLE = 14  # of a row of the time line


def as_text(report: Report) -> str:
    console = Console(width=_WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(renderable(report))
    return capture.get().rstrip("\n")


def renderable(report: Report) -> Group:
    """For rich: a head, the sites' shared and global traffic, the counts, the findings."""
    clusters = f", {report.cluster} to a cluster," if report.cluster > 1 else ""
    head = (
        f"{report.config}\n{_problem(report)}: {report.n_ctas} CTAs{clusters} of "
        f"{report.n_threads} threads, {report.smem_bytes} bytes of shared memory; "
        f"order {report.order}, "
        f"{report.seconds * 1e3:.0f} ms"
    )
    verdict = Text("nothing wrong found", "green")
    if report.findings:
        lines = "\n".join(map(str, report.findings))
        verdict = Text(f"{len(report.findings)} findings\n{lines}", "red")
    tables = [_whole_numbers(_shared(report)), _whole_numbers(_global(report))]
    slow = [Text(text, "yellow") for text in hints(report)]
    timeline = [_TimeLine(report)] if report.timeline else []
    return Group(Text(head), *tables, Text(_counts(report)), *timeline, verdict, *slow)


class _TimeLine:
    """As wide as the console."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(timeline_text(self.report, options.max_width - _ROLE))


def hints(report: Report) -> list[str]:
    """Hints: accesses whose bank conflicts at least double their time."""
    degrees = {
        f"{site} {path}": t.wavefronts / t.ideal_wavefronts
        for site, path, t in _traffic(report, SharedTraffic)
        if t.wavefronts >= 2 * t.ideal_wavefronts > 0
    }
    if not degrees:
        return []
    config = parse_config(report.config)
    advice = "; a swizzled layout avoids them" if config.family.lacks_swizzle(config) else ""
    return [
        f"slow: bank conflicts make {', '.join(degrees)} take up to {max(degrees.values()):.1f} "
        f"times as long{advice}"
    ]


def _problem(report: Report) -> str:
    """Extents, and those of the options that change something."""
    problem = report.problem
    computed = [name for name, default in DEFAULTS.items() if default is None]
    unsaid = {
        **DEFAULTS,
        **{name: problem.get(name) for name in computed},  # by the op
        **dict.fromkeys(TENSORS, False),
        "heads_kv": problem["heads"],
        "total_q": 0,
        "total_k": 0,
        "num_splits": 1,
    }
    return ", ".join(
        f"{name} {value}" for name, value in problem.items() if value != unsaid.get(name)
    )


def _shared(report: Report) -> Table:
    table = _table("shared memory", "bytes", "wavefronts", "ideal", "conflicts", "degree")
    for site, path, t in _traffic(report, SharedTraffic):
        degree = f"{t.mean_degree:.2f}"
        if t.min_degree != t.max_degree:
            degree = f"{degree} ({t.min_degree:g} to {t.max_degree:g})"
        _row(
            table, site, path, t.instructions, t.bytes, t.wavefronts, t.ideal_wavefronts,
            t.bank_conflicts, degree,
        )  # fmt: skip
    return table


def _global(report: Report) -> Table:
    table = _table("global memory", "bytes", "sectors", "ideal")
    for site, path, t in _traffic(report, GlobalTraffic):
        _row(table, site, path, t.instructions, t.bytes, t.sectors, t.ideal_sectors)
    return table


def _traffic(report: Report, kind: type):
    for site, paths in report.sites.items():
        for path, traffic in paths.items():
            if isinstance(traffic, kind):
                yield site, path.partition("_")[2], traffic


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("site")
    table.add_column("")
    for column in ("instructions", *columns):
        table.add_column(column, justify="right")
    return table


def _whole_numbers(table: Table) -> Table:
    """No narrow terminal cuts them."""
    for column in table.columns[2:]:
        column.min_width = max(map(len, [str(column.header), *column.cells]))
    return table


def _row(table: Table, *cells: int | str) -> None:
    table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells))


def _counts(report: Report) -> str:
    c = report.counts
    if c.wgmma_ss or c.tma_boxes:
        return _counts_sm90(report)
    return (
        f"of warps: {c.mma:,} mma, {c.ldmatrix:,} ldmatrix, {c.shuffles:,} shuffles, "
        f"{c.warp_syncs:,} warp syncs; of CTAs: {c.barriers:,} barriers; "
        f"of threads: {c.cp_async:,} cp.async, {c.cp_async_commits:,} commits, "
        f"{c.cp_async_waits:,} waits, {c.exponentials:,} exponentials, "
        f"{c.reciprocals:,} reciprocals"
    )


def _counts_sm90(report: Report) -> str:
    c = report.counts
    clusters = (
        f"; clusters: {c.cluster_syncs:,} syncs of warps, {c.cluster_loads:,} loads by rank of "
        f"threads, {c.cluster_bytes:,} bytes from other CTAs"
    )
    return (
        f"of warpgroups: {c.wgmma_ss:,} wgmma with A in shared memory, {c.wgmma_flops_ss:,} FLOPs, "
        f"and {c.wgmma_rs:,} with A in registers, {c.wgmma_flops_rs:,} FLOPs; "
        f"of warps: {c.wgmma_fences:,} fences, {c.wgmma_commits:,} commits, {c.wgmma_waits:,} "
        f"waits, {c.named_syncs:,} named barriers synced, {c.named_arrivals:,} arrived at, "
        f"{c.shuffles:,} shuffles, {c.stmatrix:,} stmatrix, {c.warp_syncs:,} warp syncs; of CTAs: "
        f"{c.barriers:,} barriers; TMA: {c.tma_boxes:,} boxes, "
        f"{c.tma_bytes:,} bytes; of threads: {c.mbarrier_expects:,} expect_tx, "
        f"{c.mbarrier_arrivals:,} arrivals, {c.mbarrier_waits:,} waits at mbarriers, "
        f"{c.proxy_fences:,} proxy fences, {c.exponentials:,} exponentials, "
        f"{c.reciprocals:,} reciprocals{clusters if c.cluster_syncs else ''}"
    )

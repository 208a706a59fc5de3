"""The tables of an `Inspection`, for terminals and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyflash.emulator.traffic import GlobalTraffic, SharedTraffic
from pyflash.inspect.compiled import CompiledKernel
from pyflash.inspect.native import Description
from pyflash.layouts import Access, conflicts
from pyflash.ui.tables import Table

if TYPE_CHECKING:
    from pyflash.emulator import Report
    from pyflash.inspect.inspection import Inspection

# The problem that traffic is emulated of: one batch, two heads, whole tiles of every config.
SEQLEN = 256
SHARED_TRAFFIC = "shared memory traffic, emulated"
GLOBAL_TRAFFIC = "global memory traffic, emulated"


def tables_of(found: Inspection) -> list[Table]:
    """All of it."""
    tables = [_fields(found), _resources(found), *_registers(found), _occupancy(found)]
    if found.description:
        tables += [_smem(found.description), _layouts(found.description)]
    if found.traffic:
        tables += [_shared(found.traffic), _global(found.traffic)]
    if found.kernels:
        tables += [_compiled(found.kernels), *_instructions(found.kernels[0])]
    return tables


def _registers(found: Inspection) -> list[Table]:
    """None where the model tells only sums."""
    if not found.demand:
        return []
    limit = found.resources["register_limit"]
    note = f"per thread; the limit for {found.resources['num_ctas_per_sm']} CTAs is {limit}"
    live = [(phase, n, limit) for phase, n in found.phases.items()]
    columns = ("", "alive", "limit")
    return [
        Table.of_pairs("registers, as the model counts them", found.demand, note),
        Table.of("live registers by phase", columns, live, "per thread, predicted"),
    ]


def _fields(found: Inspection) -> Table:
    canonical = found.config.canonical()
    note = "" if canonical == found.config else f"built as {canonical}"
    return Table.of_pairs("config", found.config.to_dict(), note)


def _resources(found: Inspection) -> Table:
    return Table.of_pairs(f"resources on {found.arch}, predicted", found.resources)


def _occupancy(found: Inspection) -> Table:
    compiled = found.kernels[0].ctas_per_sm if found.kernels else {}
    rows = [
        (name, predicted or "not legal", compiled.get(name))
        for name, predicted in found.ctas_per_sm.items()
    ]
    note = f"compiled: with the registers of {found.arch}" if compiled else ""
    return Table.of("CTAs per SM", ("", "predicted", "compiled"), rows, note)


def _smem(description: Description) -> Table:
    rows: list[Sequence[Any]] = [(m.name, m.offset, m.bytes) for m in description.smem]
    end = max((m.offset + m.bytes for m in description.smem), default=0)
    if end < description.smem_bytes:
        rows.append(("mbarriers, padding", end, description.smem_bytes - end))
    note = f"{description.smem_bytes:,} bytes per CTA; what starts at one offset shares the space"
    return Table.of("shared memory", ("", "offset", "bytes"), rows, note)


def _layouts(description: Description) -> Table:
    """Conflicts are those of 8 rows of 16 bytes, which ldmatrix and WGMMA read at once."""
    rows = []
    for layout in description.layouts.values():
        degree: float | None = None
        if layout.kind == "smem" and layout.name in ("Q", "K", "V"):
            degree = conflicts(Access.ldmatrix(layout.tile, n_matrices=1)).degree
        extents = layout.extents
        if repeats := layout.repeats:
            extents = extents[:2]
        size = " x ".join(map(str, extents))
        rows.append((layout.name, f"{size}, {repeats}" if repeats else size, degree, layout.text))
    columns = ("", "tile", f"{description.reader} conflicts", "layout")
    return Table.of("layouts", columns, rows)


def _shared(report: Report) -> Table:
    rows = [
        (f"{site} {path.partition('_')[2]}", t.instructions, t.bytes, t.wavefronts,
         t.ideal_wavefronts, t.bank_conflicts, t.mean_degree)
        for site, paths in report.sites.items()
        for path, t in paths.items()
        if isinstance(t, SharedTraffic)
    ]  # fmt: skip
    columns = ("", "instructions", "bytes", "wavefronts", "ideal", "conflicts", "degree")
    note = _problem_note()
    if report.counts.tma_boxes:
        note += "; of threads: what TMA writes and WGMMA reads is not counted"
    return Table.of(SHARED_TRAFFIC, columns, rows, note)


def _global(report: Report) -> Table:
    rows = [
        (f"{site} {path.partition('_')[2]}", t.instructions, t.bytes, t.sectors, t.ideal_sectors)
        for site, paths in report.sites.items()
        for path, t in paths.items()
        if isinstance(t, GlobalTraffic)
    ]
    columns = ("", "instructions", "bytes", "sectors", "ideal")
    note = _problem_note()
    if report.counts.tma_boxes:
        note += "; an instruction of TMA loads a box"
    return Table.of(GLOBAL_TRAFFIC, columns, rows, note)


def _problem_note() -> str:
    return f"1 batch, 2 heads, {SEQLEN} queries and keys"


def _compiled(kernels: Sequence[CompiledKernel]) -> Table:
    rows = [
        (k.features, k.registers, k.spill_store_bytes, k.spill_load_bytes, k.stack_bytes,
         k.loop.n_instructions, k.outside.n_instructions, ", ".join(map(str, k.shares)))
        for k in kernels
    ]  # fmt: skip
    columns = ("", "registers", "spill stores", "spill loads", "stack", "loop", "outside", "named")
    note = (
        "spills and stack in bytes per thread; instructions in the main loop and outside; named: "
        "registers that the machine code names, of those that setmaxnreg leaves a warpgroup"
    )
    over = [
        f"{share} at {share.instruction}" for k in kernels for share in k.shares if not share.fits
    ]
    note += "".join(f"; undefined registers: {text}" for text in over)
    return Table.of("compiled kernels", columns, rows, note)


def _instructions(kernel: CompiledKernel) -> list[Table]:
    names = dict.fromkeys([*kernel.loop.mix, *kernel.outside.mix])
    rows: list[Sequence[Any]] = [
        (name, kernel.loop.mix.get(name), kernel.outside.mix.get(name)) for name in names
    ]
    rows += [
        ("predicated", kernel.loop.n_predicated, kernel.outside.n_predicated),
        ("all", kernel.loop.n_instructions, kernel.outside.n_instructions),
    ]
    title = f"instructions of the {kernel.features} kernel"
    mix = Table.of(title, ("", "main loop", "outside"), rows)
    if not kernel.floors:
        return [mix]
    note = "an iteration of one CTA alone on its SM takes at least the largest"
    if "wgmma" in kernel.loop.mix:
        note += "; what WGMMA reads of shared memory is not counted"
    floors = [(floor.pipe, floor.cycles) for floor in kernel.floors]
    return [mix, Table.of("cycles of the main loop, at least", ("", "cycles"), floors, note)]

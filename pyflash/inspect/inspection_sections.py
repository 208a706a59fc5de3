"""What the page of an `Inspection` has on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from pyflash.emulator.timeline import as_svg
from pyflash.layouts import Layout, plot, plot_threads
from pyflash.ui.html import bars, scrolling
from pyflash.ui.markup import element, joined
from pyflash.ui.page import Sections, tables_as_sections

if TYPE_CHECKING:
    from pyflash.inspect.inspection import Inspection

TIME_LINE = "time line"


def sections_of(found: Inspection) -> Sections:
    """All of it."""
    troubles = [*found.violations, *found.warnings]
    troubles += [f"no {part}: {reason}" for part, reason in found.missing.items()]
    if troubles:
        yield "notes", joined(*(element("p", text, class_="warn") for text in troubles))
    yield from _shared_memory(found)
    if found.traffic and found.traffic.timeline:
        svg = as_svg(found.traffic)
        about = "what each warp does and waits for, in nominal cycles: they predict nothing"
        yield TIME_LINE, joined(element("p", f"The first CTA: {about}."), scrolling(svg, TIME_LINE))
    yield from tables_as_sections(found.tables())
    if found.phases:
        alive = found.phases | {"limit": found.resources["register_limit"]}
        chart = bars(alive, "registers")
        yield "registers alive in each phase", scrolling(chart, "registers alive in each phase")
    if found.kernels and found.kernels[0].floors:
        floors = {floor.pipe: floor.cycles for floor in found.kernels[0].floors}
        chart = bars(floors, "cycles")
        yield "least cycles of the main loop", scrolling(chart, "least cycles of each pipe")
    S = found.layouts.get("MMA C") or found.layouts.get("MMA QK^T C")
    if S:
        svg = plot_threads(S.layout, S.extents[:2])
        yield "threads of S", scrolling(svg, "which thread holds which element of S")


def _shared_memory(found: Inspection) -> Sections:
    """K as this config lays it out, beside K without a swizzle."""
    if "K" not in found.layouts:
        return
    K, reader = found.layouts["K"], found.description.reader
    rows, columns = K.extents[:2]
    plain = Layout((rows, columns), (columns, 1))
    svg = plot(plain, K.tile) if K.layout.swizzle else plot(K.tile)
    about = f"The first of {K.repeats}. " if K.repeats else ""
    if reader != "ldmatrix":
        about += f"{reader} reads K here, 8 rows of 16 bytes at a time as ldmatrix does."
    note = element("p", about) if about else Markup()
    yield "K in shared memory", note + scrolling(svg, "picture of K's layout, by bank")

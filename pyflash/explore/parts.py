"""Parts of the page that need a compiler, each a page of its own."""

from __future__ import annotations

from collections.abc import Callable

from pyflash.explore.state import State
from pyflash.inspect.inspection import Inspection, inspect
from pyflash.inspect.inspection_sections import TIME_LINE
from pyflash.inspect.inspection_tables import GLOBAL_TRAFFIC, SHARED_TRAFFIC
from pyflash.ui.page import Paged, Sections

LAYOUTS = "/layouts"
EMULATED = "/emulated"


class Part(Paged):
    """Some sections of an inspection."""

    def __init__(self, title: str, found: Inspection, sections: tuple[str, ...]) -> None:
        self._title, self._found, self._shown = title, found, ("notes", *sections)

    @property
    def page_title(self) -> str:
        return self._title

    @property
    def answer(self) -> str:
        report = self._found.traffic
        if report is None:
            return ""
        n = len(report.findings)
        return f"The emulator finds {n} faults." if n else "The emulator finds nothing wrong."

    def sections(self) -> Sections:
        return ((name, html) for name, html in self._found.sections() if name in self._shown)


def layouts(state: State) -> Part:
    """Shared memory, from the kernel's own types."""
    found = inspect(state.config, state.arch, ("layouts",))
    shown = ("K in shared memory", "shared memory", "layouts", "threads of S")
    return Part("Layouts", found, shown)


def emulated(state: State) -> Part:
    """What the kernel does on a small problem."""
    found = inspect(state.config, state.arch, ("traffic",))
    return Part("Emulated", found, (TIME_LINE, SHARED_TRAFFIC, GLOBAL_TRAFFIC))


PARTS: dict[str, Callable[[State], Part]] = {LAYOUTS: layouts, EMULATED: emulated}

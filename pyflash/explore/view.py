"""The page of a state: what is known of a config without running it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from markupsafe import Markup

from pyflash.codegen import emit
from pyflash.codegen.build import compiled_features
from pyflash.config import FORWARD
from pyflash.config.features import Features
from pyflash.explore.form import STYLE, controls
from pyflash.explore.measured import Measured, measured_of
from pyflash.explore.parts import EMULATED, LAYOUTS
from pyflash.explore.state import State
from pyflash.explore.variant import variant_section
from pyflash.inspect.sheet import Sheet
from pyflash.ui.html import bars, bullets, scrolling, table_html
from pyflash.ui.markup import element, joined
from pyflash.ui.page import Paged, Sections, tables_as_sections
from pyflash.ui.tables import Table
from pyflash.ui.variants import variant_of


@dataclass(frozen=True)
class View(Paged):
    state: State
    error: str = ""  # of what was asked instead
    measured: Measured | None = None

    @property
    def page_title(self) -> str:
        title = f"{self.state.config} on {self.state.arch}"
        return f"{title} with {self.state.variant}" if self.state.variant else title

    @property
    def answer(self) -> str:
        config, arch = self.state.config, self.state.arch
        if not config.is_legal(arch):
            n = len(config.violations(arch))
            return f"Not legal on {arch}: it breaks {n} rule{'s' * (n != 1)}."
        return f"Legal on {arch}. {config.resources(arch).sentence}"

    def sections(self) -> Sections:
        state = self.state
        if self.error:
            yield "error", element("p", self.error, class_="warn")
        yield "controls", joined(element("style", STYLE), controls(state))
        yield "rules", _rules(state)
        if state.variant:
            yield "variant", variant_section(state)
        if self.measured:
            yield "measured", measured_of(state, self.measured)
        sheet = Sheet.of(state.config)
        yield from (one for one in tables_as_sections(sheet.tables()) if one[0] != "fields")
        yield from _registers(state)
        yield "expected time", _time(state)
        yield "shared memory", _shared_memory(state)
        yield "emulated", _emulated(state)
        yield "C++", _cpp(state)


def _rules(state: State) -> Markup:
    violations = state.config.violations(state.arch)
    if violations:
        sentences = (element("span", v.sentence, class_="warn") for v in violations)
        return bullets(sentences)
    found = [element("p", f"Legal on {state.arch}.")]
    found += [element("p", w.sentence, class_="warn") for w in state.config.warnings(state.arch)]
    return joined(*found)


def _registers(state: State) -> Sections:
    model = state.config.family.register_demand
    if model is None:
        return
    limit = state.config.resources(state.arch).register_limit
    chart = bars(model(state.config).phases | {"limit": limit}, "registers")
    yield "registers alive in each phase", scrolling(chart, "registers alive in each phase")


def _time(state: State) -> Markup:
    """By the model, where the op has one and the config is legal."""
    config, arch = state.config, state.arch
    if config.family.op is not FORWARD:
        return element("p", f"The model of time is of op {FORWARD}, not of {config.family.op}.")
    if not config.is_legal(arch):
        return element("p", f"Not legal on {arch}: nothing to expect.")
    try:
        return table_html(_time_table(state))
    except (RuntimeError, ValueError) as error:
        return element("p", f"No time is expected: {error}", class_="warn")


def _time_table(state: State) -> Table:
    import torch

    from pyflash.config.features import first_covering
    from pyflash.op.selection import features_needed
    from pyflash.tuner.model import flops, gpu_of, predict

    gpu = gpu_of(torch.device("cpu"), state.arch)
    needed = features_needed(state.problem, state.config)
    seconds = predict(state.config, state.problem, gpu)
    note = (
        f"by the model, for {gpu.n_sms} SMs of {gpu.flops / 1e12:,.0f} TFLOP/s and "
        f"{gpu.bytes_per_second / 1e9:,.0f} GB/s in all: it orders configs, and measures nothing"
    )
    pairs = {
        "microseconds": seconds * 1e6,
        "TFLOP/s": flops(state.problem) / seconds / 1e12 if seconds else 0.0,
        "features that the problem needs": needed,
        "combination that it runs in": first_covering(needed, compiled_features(state.config)),
    }
    return Table.of_pairs("expected time", pairs, note)


def _shared_memory(state: State) -> Markup:
    """From the kernel's own types, which are compiled the first time: in a frame, for which the
    rest of the page does not wait."""
    if not state.config.is_legal(state.arch):
        return element("p", f"Not legal on {state.arch}: no layouts.")
    note = "Layouts and bank conflicts, from the kernel's own types: compiled when first shown."
    return joined(element("p", note), _frame(LAYOUTS, state, "layouts in shared memory"))


def _emulated(state: State) -> Markup:
    """In a frame that a browser asks for when it is opened: the kernel is compiled then."""
    config = state.config
    if not config.is_legal(state.arch):
        return element("p", f"Not legal on {state.arch}: nothing to run.")
    if config.family.emulation_header is None:
        return element("p", f"The emulator does not run the family {config.family}.")
    note = "Run the kernel on the CPU: races, traffic and, of an SM90 kernel, the time line. "
    waits = "Compiling takes half a minute or more the first time."
    frame = _frame(EMULATED, state, "what the kernel does on a small problem")
    return element("details", element("summary", note, waits), frame)


def _frame(path: str, state: State, title: str) -> Markup:
    query = {name: state.query[name] for name in ("config", "arch")}
    return element("iframe", src=f"{path}?{urlencode(query)}", title=title, loading="lazy")


def _cpp(state: State) -> Markup:
    config = state.config.canonical()
    if state.variant and config.family.variant_header:
        text = emit.emit_with_variant(config, variant_of(state.variant)[0], [Features()])
    else:
        text = emit.emit_config(config, compiled_features(config))
    return scrolling(element("pre", text), "the translation unit that is compiled")

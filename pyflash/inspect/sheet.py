"""Everything known about a config, or a space of configs, without compiling: `pyflash config |
space`.

sheet = Sheet.of("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles")
sheet.on["sm_86"].violations, sheet.on["sm_90"].resources.num_ctas_per_sm
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.console import Group
from rich.text import Text

from pyflash.config import ARCHS, Arch, KernelConfig, Space, Violation, as_config
from pyflash.config.resources import Resources
from pyflash.ui.html import notebook, scrolling, table_html
from pyflash.ui.markup import element
from pyflash.ui.notebook import view
from pyflash.ui.page import Paged, Sections, fragment, tables_as_sections
from pyflash.ui.tables import Table

# By the fields of Resources, the most that an architecture has: of registers per thread, of bytes
# and of threads per CTA, of CTAs per SM.
_LIMITS: dict[str, Callable[[Arch], int]] = {
    "registers": lambda arch: arch.max_registers_per_thread,
    "smem_bytes": lambda arch: arch.smem_per_cta,
    "n_threads": lambda arch: arch.max_threads_per_cta,
    "num_ctas_per_sm": lambda arch: arch.max_ctas_per_sm,
}


@dataclass(frozen=True)
class OnArch:
    """A config on one architecture."""

    arch: Arch
    violations: list[Violation]
    warnings: list[Violation]
    resources: Resources | None  # None: not legal there, and nothing to predict


@dataclass(frozen=True)
class Sheet(Paged):
    config: KernelConfig
    on: dict[str, OnArch]  # by the architecture's name

    @classmethod
    def of(cls, config: KernelConfig | str, archs: Iterable[Arch | str | int] = ARCHS) -> Sheet:
        """Raises ValueError for text that is no config and for an unknown architecture."""
        config = as_config(config)
        on = {}
        for arch in map(Arch.of, archs):
            violations = config.violations(arch)
            on[arch.name] = OnArch(
                arch,
                violations,
                config.warnings(arch) if not violations else [],
                config.resources(arch) if not violations else None,
            )
        return cls(config, on)

    @property
    def is_legal(self) -> bool:
        """On any of the architectures."""
        return any(not found.violations for found in self.on.values())

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "config": str(self.config),
            "canonical": str(self.config.canonical()),
            "family": str(self.config.family),
            "fields": self.config.to_dict(),
            "cpp": self.config.to_cpp_struct(),
            "archs": {
                name: {
                    "legal": not found.violations,
                    "violations": [v._asdict() for v in found.violations],
                    "warnings": [v._asdict() for v in found.warnings],
                    "resources": found.resources and dataclasses.asdict(found.resources),
                }
                for name, found in self.on.items()
            },
        }

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    @property
    def head(self) -> str:
        canonical = self.config.canonical()
        stands = "the canonical form" if canonical == self.config else f"built as {canonical}"
        about = f"family {self.config.family}, {stands}"
        return "\n".join([str(self.config), about, self.config.to_cpp_struct()])

    def tables(self) -> list[Table]:
        """Fields, resources, and the rules that are broken."""
        note = "" if self.is_legal else "not legal on any of these architectures"
        tables = [Table.of_pairs("fields", self.config.to_dict()), self._resources(note)]
        for title, kind in (("broken rules", "violations"), ("warnings", "warnings")):
            if rows := self._sentences(kind):
                tables.append(Table.of(title, ("rule", "on", ""), rows))
        return tables

    def _resources(self, note: str) -> Table:
        on = self.on.values()
        rows: list[tuple[Any, ...]] = [("legal", *(not found.violations for found in on))]
        for field in dataclasses.fields(Resources):
            values = (getattr(found.resources, field.name, None) for found in on)
            limit = _LIMITS.get(field.name)
            if limit is None:
                rows.append((field.name, *values))
                continue
            limits = (limit(found.arch) for found in on)
            against = (
                None if value is None else f"{value:,} of {most:,}"
                for value, most in zip(values, limits, strict=True)
            )
            rows.append((field.name, *against))
        return Table.of("predicted resources against their limits", ("", *self.on), rows, note)

    def _sentences(self, kind: str) -> list[tuple[str, str, str]]:
        """A row for each sentence, with the architectures that say it."""
        archs_of: dict[Violation, list[str]] = {}
        for name, found in self.on.items():
            for violation in getattr(found, kind):
                archs_of.setdefault(violation, []).append(name)
        return [(v.rule, ", ".join(archs), v.sentence) for v, archs in archs_of.items()]

    @property
    def page_title(self) -> str:
        return str(self.config)

    @property
    def answer(self) -> str:
        legal = [name for name, found in self.on.items() if not found.violations]
        return f"Legal on {', '.join(legal)}." if legal else "Legal on none of these architectures."

    def sections(self) -> Sections:
        yield "config", scrolling(element("pre", self.head), "the config as C++")
        yield from tables_as_sections(self.tables())

    def __rich__(self) -> Group:
        return Group(Text(self.head, no_wrap=True, overflow="ignore"), *self.tables())


@dataclass(frozen=True)
class SpaceSheet(Paged):
    """How much of a space an architecture can run, and why not the rest."""

    space: Space
    arch: Arch
    legal: list[KernelConfig]
    refused: dict[str, tuple[int, str]]  # by rule: how many configs, a sentence of the first

    @classmethod
    def of(
        cls,
        space: Space,
        arch: Arch | str | int,
        track: Callable[[Iterable[KernelConfig]], Iterable[KernelConfig]] = iter,
    ) -> SpaceSheet:
        """`track` is what the configs pass through, one by one. Raises ValueError for an unknown
        architecture."""
        arch = Arch.of(arch)
        found: dict[str, tuple[int, str]] = {}
        legal = []
        for config in track(space):
            violations = config.violations(arch)
            if not violations:
                legal.append(config)
            sentences = dict(reversed(violations))
            for rule, sentence in sentences.items():
                count, first = found.get(rule, (0, sentence))
                found[rule] = (count + 1, first)
        most_first = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
        return cls(space, arch, legal, dict(most_first))

    @property
    def page_title(self) -> str:
        n_all, n_legal = len(self.space), len(self.legal)
        return f"{n_all:,} configs of {self.space.family}, {n_legal:,} legal on {self.arch}"

    @property
    def answer(self) -> str:
        if not self.refused:
            return f"No rule refuses any of them on {self.arch}."
        rule, (count, _) = next(iter(self.refused.items()))
        return f"{rule} refuses the most of them on {self.arch}: {count:,}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "family": str(self.space.family),
            "arch": self.arch.name,
            "n_configs": len(self.space),
            "n_legal": len(self.legal),
            "legal": list(map(str, self.legal)),
            "refused": {
                rule: {"configs": count, "example": sentence}
                for rule, (count, sentence) in self.refused.items()
            },
        }

    def table(self) -> Table:
        rows = [(rule, count, sentence) for rule, (count, sentence) in self.refused.items()]
        note = "a config may break several rules" if rows else ""
        return Table.of(self.page_title, ("rule", "refuses", "for example"), rows, note)

    def sections(self) -> Sections:
        yield "space", element("p", repr(self.space))
        yield "rules", table_html(self.table())

    def __rich__(self) -> Table:
        return self.table()


@view.register
def _(config: KernelConfig) -> Markup:
    return fragment(Sheet.of(config))


@view.register
def _(space: Space) -> Markup:
    """The values of each field."""
    return notebook(table_html(Table.of_pairs("space", space.texts(), repr(space))))

"""Two configs side by side: fields, resources, instructions, machine code.

print(diff("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles", other, "sm_90"))
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Group
from rich.text import Text

from pyflash.codegen.build import legal_archs
from pyflash.config import KernelConfig, as_config
from pyflash.config.arch import Arch
from pyflash.inspect.compiled import CompiledKernel, compiled_kernels
from pyflash.inspect.inspection import conflict_degrees, emulated_traffic
from pyflash.inspect.sass import CLASSES, OTHER, Instruction
from pyflash.ui.html import scrolling
from pyflash.ui.markup import element
from pyflash.ui.page import Paged, Sections, tables_as_sections
from pyflash.ui.tables import Table
from pyflash.ui.variants import AskedVariant
from pyflash.variant import Variant

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Changed:
    """An opcode, with its modifiers, and how many instructions have it."""

    opcode: str
    kind: str  # a class of `sass.CLASSES`
    loop: tuple[int, int]  # in the main loop
    all: tuple[int, int]


@dataclass(frozen=True)
class Diff(Paged):
    """(first, second) of everything; `fields` and `changed` have only what differs."""

    configs: tuple[str, str]
    canonical: tuple[str, str]
    sm: int
    features: str
    fields: dict[str, Pair]
    resources: dict[str, Pair]
    loop_mix: dict[str, tuple[int, int]]
    all_mix: dict[str, tuple[int, int]]
    floors: dict[str, tuple[float, float]]  # cycles per iteration of the main loop
    changed: list[Changed]
    kernels: tuple[CompiledKernel, CompiledKernel]
    variant: str | None = None  # of both

    @property
    def same(self) -> bool:
        """Whether both are the same machine code, as configs with one canonical config are."""
        return all_text(self.kernels[0]) == all_text(self.kernels[1])

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, without the machine code."""
        plain = ("configs", "canonical", "sm", "features", "fields", "resources", "loop_mix",
                 "all_mix", "floors", "variant")  # fmt: skip
        changed = [asdict(c) for c in self.changed]
        return {name: getattr(self, name) for name in plain} | {"changed": changed}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def sass(self, context: int = 2) -> str:
        """The main loops' machine code as a unified diff, registers and addresses left out: what
        the register allocator renames is no difference."""
        texts = [
            list(map(normalised, kernel.kernel.inside(kernel.kernel.main_loop)))
            for kernel in self.kernels
        ]
        lines = difflib.unified_diff(*texts, *self.configs, n=context, lineterm="")
        return "\n".join(lines)

    def tables(self) -> list[Table]:
        """What differs, a row each, and the instructions and floors of both."""
        opcodes = [(c.opcode, c.kind, *c.loop, *c.all) for c in self.changed]
        columns = ("opcode", "class", "A, loop", "B, loop", "A, all", "B, all")
        return [
            *(
                _table(title, pairs)
                for title, pairs in (
                    ("fields", self.fields),
                    ("resources", self.resources),
                    ("main loop, instructions", self.loop_mix),
                    ("main loop, least cycles of one CTA", self.floors),
                )
            ),
            Table.of("opcodes that differ", columns, opcodes),
        ]

    @property
    def heading(self) -> str:
        """Which is A and which is B, and where both are one kernel."""
        lines = [f"A  {self.configs[0]}", f"B  {self.configs[1]}"]
        if self.canonical[0] == self.canonical[1]:
            lines.append(f"both stand for {self.canonical[0]}")
        same = ", the same machine code" if self.same else ""
        with_variant = f", with {self.variant}" if self.variant else ""
        return "\n".join([*lines, f"sm_{self.sm}, {self.features}{with_variant}{same}"])

    def __rich__(self) -> Group:
        return Group(Text(self.heading), *self.tables())

    @property
    def page_title(self) -> str:
        return f"{self.configs[0]} and {self.configs[1]}"

    @property
    def answer(self) -> str:
        if self.same:
            return "A and B are the same machine code."
        before, after = self.resources["loop n_instructions"]
        issued = f"The main loop of A has {before:,} instructions, that of B {after:,}."
        if not self.floors:
            return issued
        least = [max(self.floors, key=lambda pipe: self.floors[pipe][side]) for side in (0, 1)]
        first, second = (
            f"{self.floors[pipe][side]:,.0f} cycles ({pipe})" for side, pipe in enumerate(least)
        )
        return f"{issued} An iteration takes A at least {first}, B {second}."

    def sections(self) -> Sections:
        yield "configs", scrolling(element("pre", self.heading), "the two configs")
        yield from tables_as_sections(self.tables())
        code = element("pre", self.sass())
        yield "machine code", scrolling(code, "differences of the main loops' machine code")


def diff(
    first: KernelConfig | str,
    second: KernelConfig | str,
    arch: Arch | str | int,
    features: str = "plain",
    emulate: bool = False,
    variant: AskedVariant | Variant | str | None = None,
) -> Diff:
    """Compares the kernels of two configs with the same features; both come from the cache of
    builds or are compiled. With `emulate` the floor of shared memory counts the bank conflicts that
    the emulator finds; without, none. With a variant, the value, its text or the name of a named
    one, both are compiled and emulated with that.

    Raises as `compiled_kernels` does.
    """
    configs = (as_config(first), as_config(second))
    # Before the first is emulated or compiled.
    for config in configs:
        config.family.op.features.of(features)
    if asked := AskedVariant.of_value(variant, None):
        asked.check_families(configs)
    legal_archs(configs, [arch])
    kernels = tuple(_kernel(config, arch, features, emulate, asked) for config in configs)
    return replace(diff_of(configs, kernels), variant=str(asked) if asked else None)


def diff_of(
    configs: tuple[KernelConfig, KernelConfig], kernels: tuple[CompiledKernel, CompiledKernel]
) -> Diff:
    """The same of kernels that were compiled."""
    values = [config.to_dict() for config in configs]
    fields = {
        name: (values[0].get(name), values[1].get(name))
        for name in dict.fromkeys([*values[0], *values[1]])
        if values[0].get(name) != values[1].get(name)
    }
    resources = {
        name: tuple(getattr(kernel, name) for kernel in kernels)
        for name in ("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes",
                     "smem_bytes")
    }  # fmt: skip
    arch = f"sm_{kernels[0].sm}"
    resources["ctas_per_sm"] = tuple(kernel.ctas_per_sm[arch] for kernel in kernels)
    for name in ("n_instructions", "n_predicated"):
        resources[f"loop {name}"] = tuple(getattr(kernel.loop, name) for kernel in kernels)
        resources[f"outside {name}"] = tuple(getattr(kernel.outside, name) for kernel in kernels)
    loops = [kernel.kernel.inside(kernel.kernel.main_loop) for kernel in kernels]
    wholes = [kernel.kernel.instructions for kernel in kernels]
    floors = [{floor.pipe: floor.cycles for floor in kernel.floors} for kernel in kernels]
    return Diff(
        configs=tuple(map(str, configs)),
        canonical=tuple(str(config.canonical()) for config in configs),
        sm=kernels[0].sm,
        features=kernels[0].features,
        fields=fields,
        resources=resources,
        loop_mix=_mixes(*loops),
        all_mix=_mixes(*wholes),
        floors={
            pipe: (floors[0].get(pipe, 0), floors[1].get(pipe, 0))
            for pipe in dict.fromkeys([*floors[0], *floors[1]])
        },
        changed=_changed(loops, wholes),
        kernels=kernels,
    )


def _kernel(
    config: KernelConfig,
    arch: Arch | str | int,
    features: str,
    emulate: bool,
    asked: AskedVariant | None,
) -> CompiledKernel:
    degrees = conflict_degrees(emulated_traffic(config, variant=asked)) if emulate else None
    variant = asked.variant if asked else None
    (kernel,) = compiled_kernels(config, arch, degrees, [features], variant)
    return kernel


def _mixes(
    first: Iterable[Instruction], second: Iterable[Instruction]
) -> dict[str, tuple[int, int]]:
    counts = [Counter(ins.kind for ins in instructions) for instructions in (first, second)]
    present = counts[0].keys() | counts[1].keys()
    return {
        name: (counts[0][name], counts[1][name]) for name in (*CLASSES, OTHER) if name in present
    }


def _changed(
    loops: Sequence[Sequence[Instruction]], wholes: Sequence[Sequence[Instruction]]
) -> list[Changed]:
    """Opcodes that one has more of, the largest difference in the loop first, then in all."""
    in_loop, in_all = (
        [Counter(ins.opcode for ins in part) for part in parts] for parts in (loops, wholes)
    )
    kinds = {ins.opcode: ins.kind for part in wholes for ins in part}
    rows = [
        Changed(
            opcode,
            kind,
            loop=(in_loop[0][opcode], in_loop[1][opcode]),
            all=(in_all[0][opcode], in_all[1][opcode]),
        )
        for opcode, kind in kinds.items()
    ]
    different = [row for row in rows if row.loop[0] != row.loop[1] or row.all[0] != row.all[1]]
    return sorted(different, key=lambda row: (-_apart(row.loop), -_apart(row.all), row.opcode))


def _apart(pair: tuple[int, int]) -> int:
    return abs(pair[0] - pair[1])


def normalised(instruction: Instruction) -> str:
    """Its guard without the predicate's number, and its opcode."""
    guard = "@P " if instruction.guard else ""
    return f"{guard}{instruction.opcode}"


def all_text(kernel: CompiledKernel) -> list[str]:
    return [str(instruction) for instruction in kernel.kernel.instructions]


def _table(title: str, rows: dict[str, Pair]) -> Table:
    cells = [(name, *pair, _difference(pair)) for name, pair in rows.items()]
    return Table.of(title, ("", "A", "B", "B - A"), cells)


def _difference(pair: Pair) -> str:
    first, second = pair
    numbers = all(type(value) in (int, float) for value in pair)
    return f"{second - first:+,g}" if numbers and first != second else ""

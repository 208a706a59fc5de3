"""Everything known about a config, as one value.

    found = inspect("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles", "sm_90")
    print(found.kernels[0].registers, found.layouts["K"].layout, found.to_json())

Four parts, each as far as this machine has what it takes: what the resource model predicts
(nothing), layouts from the kernel's own types (g++), memory traffic from the emulator (g++), and
what the compiler made of it (nvcc, cuobjdump). What is missing is named with its reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from pyflash.config import ARCHS, FORWARD, KernelConfig, KernelFeatures, as_config
from pyflash.config.arch import Arch
from pyflash.emulator.traffic import SharedTraffic
from pyflash.inspect.compiled import CompiledKernel, compiled_kernels
from pyflash.inspect.inspection_sections import sections_of
from pyflash.inspect.inspection_tables import SEQLEN, tables_of
from pyflash.inspect.native import Description, describe
from pyflash.ui.page import Paged, Sections
from pyflash.ui.tables import Table
from pyflash.ui.variants import AskedVariant
from pyflash.variant import Variant, tiles

if TYPE_CHECKING:
    from pyflash.emulator import Report

PARTS = ("layouts", "traffic", "compiled")


@dataclass(frozen=True)
class Inspection(Paged):
    """A config on an architecture. A part that this machine cannot compute is None or empty, and
    `missing` says why."""

    config: KernelConfig
    arch: Arch
    violations: list[str]
    warnings: list[str]
    resources: dict[str, Any]  # by the resource model
    demand: dict[str, int]  # registers per thread by what they hold, and the peak; {}: not told
    phases: dict[str, int]  # registers per thread that are alive in each phase of an iteration
    ctas_per_sm: dict[str, int]  # by architecture, by the model; 0: not legal there
    description: Description | None = None
    traffic: Report | None = None
    kernels: list[CompiledKernel] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    variant: AskedVariant | None = None

    @property
    def layouts(self) -> dict[str, Any]:
        """By name; {} where they could not be had."""
        return self.description.layouts if self.description else {}

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, without machine code and offsets."""
        layouts = {
            name: {"kind": one.kind, "text": one.text, "extents": one.extents}
            for name, one in self.layouts.items()
        }
        smem = [dataclasses.asdict(member) for member in self.description.smem] if layouts else []
        traffic = json.loads(self.traffic.to_json()) if self.traffic else None
        return {
            "config": str(self.config),
            "canonical": str(self.config.canonical()),
            "family": str(self.config.family),
            "fields": self.config.to_dict(),
            "arch": str(self.arch),
            "violations": self.violations,
            "warnings": self.warnings,
            "resources": self.resources,
            "demand": self.demand,
            "phases": self.phases,
            "ctas_per_sm": self.ctas_per_sm,
            "layouts": layouts,
            "smem": smem,
            "traffic": traffic,
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "missing": self.missing,
            "variant": str(self.variant) if self.variant else None,
        }

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def tables(self) -> list[Table]:
        """All of it, for terminals and pages."""
        return tables_of(self)

    def __rich__(self) -> Group:
        head = Text(self.page_title, "bold")
        refused = [Text(text, "red") for text in self.violations]
        warned = [Text(text, "yellow") for text in self.warnings]
        missing = [Text(f"no {part}: {reason}", "yellow") for part, reason in self.missing.items()]
        return Group(head, *refused, *warned, *self.tables(), *missing)

    @property
    def page_title(self) -> str:
        return f"{self.config} on {self.arch}{f' with {self.variant.name}' if self.variant else ''}"

    @property
    def answer(self) -> str:
        if self.violations:
            return f"Not legal on {self.arch}: {self.violations[0]}"
        predicted = self.config.resources(self.arch).sentence
        if not self.kernels or not self.kernels[0].floors:
            return predicted
        first, *rest = self.kernels[0].floors
        beside = f" and {rest[0].cycles:,.0f} of {rest[0].name}" if rest else ""
        return (
            f"{predicted} An iteration of the main loop takes at least {first.cycles:,.0f} cycles "
            f"of {first.name}{beside}."
        )

    def sections(self) -> Sections:
        return sections_of(self)


def inspect(
    config: KernelConfig | str,
    arch: Arch | str | int,
    parts: Sequence[str] = PARTS,
    features: Sequence[KernelFeatures | str] = ("plain",),
    variant: AskedVariant | Variant | str | None = None,
) -> Inspection:
    """Looks inside a config of any family, built or not, on an architecture.

    `parts` are those of `PARTS` that are wanted, `features` those of the kernels to compile;
    `variant` the value, its text, or the name of a named one, of traffic and kernels. A
    config that is not legal on `arch` has its violations and what the model says. Raises ValueError
    for text that is no config, an unknown architecture, part or feature.
    """
    config, arch = as_config(config), Arch.of(arch)
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"unknown parts {sorted(unknown)}: expected some of {', '.join(PARTS)}")
    features = config.family.op.features.in_dispatch_order(features)
    asked = AskedVariant.of_value(variant, None)
    if asked:
        asked.check_families([config])
    violations = [sentence for _, sentence in config.violations(arch)]
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}

    def attempt(part: str, make: Callable[[], Any]) -> None:
        if part not in parts:
            return
        if violations:
            missing[part] = f"not legal on {arch}"
            return
        try:
            found[part] = make()
        except (RuntimeError, ValueError) as error:
            missing[part] = str(error)

    attempt("layouts", lambda: describe(config))
    attempt("traffic", lambda: emulated_traffic(config, variant=asked))
    degrees = conflict_degrees(found["traffic"]) if "traffic" in found else None
    model = config.family.register_demand
    demand = model(config) if model else None
    of_kernels = asked.variant if asked else None
    attempt("compiled", lambda: compiled_kernels(config, arch, degrees, features, of_kernels))
    return Inspection(
        config=config,
        arch=arch,
        violations=violations,
        warnings=[sentence for _, sentence in config.warnings(arch)],
        resources=dataclasses.asdict(config.resources(arch)),
        demand=dataclasses.asdict(demand) | {"peak": demand.peak} if demand else {},
        phases=demand.phases if demand else {},
        ctas_per_sm={
            str(known): config.num_ctas_per_sm(known) if config.is_legal(known) else 0
            for known in ARCHS
        },
        description=found.get("layouts"),
        traffic=found.get("traffic"),
        kernels=found.get("compiled", []),
        missing=missing,
        variant=asked,
    )


def emulated_traffic(
    config: KernelConfig, seqlen: int = SEQLEN, variant: AskedVariant | None = None
) -> Report:
    """The report of one batch, two heads and `seqlen` queries and keys.

    Raises ValueError for a family that the emulator does not run, BuildError, RuntimeError.
    """
    import torch

    from pyflash.emulator import emulate, emulate_backward
    from pyflash.op.selection import TORCH_DTYPES

    if config.family.emulation_header is None:
        raise ValueError(f"the emulator does not run the family {config.family}")
    generator = torch.Generator().manual_seed(0)
    shape = (1, seqlen, 2, config.d_head)
    q, k, v, grad_out = (
        torch.randn(shape, generator=generator).to(TORCH_DTYPES[config.dtype]) for _ in range(4)
    )
    if config.family.op is FORWARD:
        given = {}
        if variant:
            tensors = variant.tensors(tiles.Problem(seqlen, seqlen, 1, 2))
            given = {"variant": variant.variant, "tensors": tensors}
        *_, report = emulate(q, k, v, config, **given)
    else:
        out, lse = torch.ops.pyflash.fwd(q, k, v)
        *_, report = emulate_backward(grad_out, out, lse, q, k, v, config)
    return report


def conflict_degrees(report: Report) -> dict[str, float]:
    """By class of instruction, for `pipes.floors`: how many times as long accesses of the main loop
    take because of bank conflicts."""
    degrees = {}
    for name, sites in (
        ("ldmatrix", ("Q_s2r", "K_s2r", "V_s2r")),
        ("cp.async", ("K_g2s", "V_g2s")),
        ("shared store", ("K_g2s", "V_g2s")),
    ):
        shared = [
            traffic
            for site in sites
            for traffic in report.sites.get(site, {}).values()
            if isinstance(traffic, SharedTraffic)
        ]
        ideal = sum(traffic.ideal_wavefronts for traffic in shared)
        if ideal:
            degrees[name] = sum(traffic.wavefronts for traffic in shared) / ideal
    return degrees

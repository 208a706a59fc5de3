"""The resource model's registers beside ptxas's, for every kernel of a built library."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyflash.codegen.build import built_resources
from pyflash.config import KernelConfig
from pyflash.inspect.compiled import feature_name
from pyflash.inspect.sass import demangle
from pyflash.ui.tables import Table


@dataclass(frozen=True, slots=True)
class Registers:
    """Per thread, of one kernel on one architecture."""

    config: KernelConfig
    sm: int
    features: str
    predicted: int
    compiled: int
    spilled_bytes: int  # stores and loads

    @property
    def percent_off(self) -> float:
        """The error as a share of ptxas's figure; above 0 where the model predicts too many."""
        return 100 * (self.predicted - self.compiled) / self.compiled

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        of_config = {"config": str(self.config), "percent_off": self.percent_off}
        return dataclasses.asdict(self) | of_config


def registers_of(library: Path) -> list[Registers]:
    """Those of every kernel in a library, from the record beside it. Raises OSError without one."""
    return [
        Registers(
            config=config,
            sm=kernel["arch"],
            features=feature_name(demangle(kernel["function"])),
            predicted=config.resources(kernel["arch"]).registers,
            compiled=kernel["registers"],
            spilled_bytes=kernel["spill_store_bytes"] + kernel["spill_load_bytes"],
        )
        for config, record in built_resources(library).items()
        for kernel in record["kernels"]
    ]


def register_table(library: Path) -> Table:
    """A row for each kernel."""
    rows = [
        (str(r.config), f"sm_{r.sm}", r.features, r.predicted, r.compiled,
         f"{r.percent_off:+.1f}", r.spilled_bytes)
        for r in registers_of(library)
    ]  # fmt: skip
    columns = ("config", "arch", "kernel", "predicted", "ptxas", "% off", "spilled bytes")
    return Table.of("registers per thread", columns, rows)


def summary(library: Path) -> str:
    """How far the model is off at most and in the middle, in a sentence."""
    off = sorted(abs(r.percent_off) for r in registers_of(library))
    within = sum(percent <= 8 for percent in off)
    return (
        f"{within} of {len(off)} kernels within 8 %, at most {off[-1]:.1f} % off, "
        f"median {off[len(off) // 2]:.1f} %"
    )


def to_markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return "\n".join(
        [line(table.columns), line(["---"] * len(table.columns)), *map(line, table.rows)]
    )

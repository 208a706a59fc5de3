"""What a tuning run would try, and what rules refuse: `pyflash tune --dry-run`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from pyflash.config import KernelConfig
from pyflash.op.selection import Problem
from pyflash.tuner.candidates import AnySpace, Survey, kernels_for, survey
from pyflash.tuner.model import Gpu, predict
from pyflash.tuner.problems import problem_name
from pyflash.ui.variants import AskedVariant

_SHOWN = 5  # candidates of a problem


@dataclass(frozen=True)
class DryRun:
    """By problem, seconds that the model expects of each candidate, the fastest first."""

    found: Survey
    expected: dict[str, dict[KernelConfig, float]]

    @classmethod
    def of(
        cls,
        space: AnySpace,
        problems: Iterable[Problem],
        gpu: Gpu,
        asked: AskedVariant | None = None,
    ) -> DryRun:
        """Raises ValueError for texts that are no configs."""
        found = survey(space, gpu.arch)
        expected = {}
        for problem in problems:
            kernels = kernels_for(problem, found.legal, asked and asked.variant)
            configs = [kernel.config for kernel in kernels]
            seconds = {config: predict(config, problem, gpu) for config in configs}
            ranking = sorted(seconds.items(), key=lambda item: item[1])
            expected[problem_name(problem, asked)] = dict(ranking)
        return cls(found, expected)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "configs": self.found.n_configs,
            "legal": len(self.found.legal),
            "refused": dict(self.found.refused),
            "problems": {
                name: {
                    "candidates": len(seconds),
                    "first": [
                        {"config": str(config), "seconds": value}
                        for config, value in list(seconds.items())[:_SHOWN]
                    ],
                }
                for name, seconds in self.expected.items()
            },
        }

    def __rich__(self) -> Group:
        table = Table("us expected", box=None)
        table.add_column("config", overflow="fold")
        for name, seconds in self.expected.items():
            table.add_row("", f"{name}: {len(seconds)} candidates", style="bold")
            for config, value in list(seconds.items())[:_SHOWN]:
                table.add_row(f"{value * 1e6:.1f}", str(config))
        rules = self.found.refused.most_common()
        refused = ", ".join(f"{rule} {n}" for rule, n in rules) or "none"
        kernels = f"{self.found.n_configs} configs, {len(self.found.legal)} legal kernels"
        return Group(table, f"{kernels}; refused: {refused}")

"""The config map of the process: what is built for each config.

`pyflash.op.library`, which registers the ops, has these names, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from pyflash.config import OPS, Features, KernelConfig, parse


@dataclass(frozen=True, slots=True)
class BuiltConfig:
    """A row of the config map: what is compiled for one config."""

    config: KernelConfig
    features: tuple[Features, ...]  # combinations, in the order of dispatch
    sm_archs: tuple[str, ...]  # targets of the machine code, such as ("80", "90a")
    ptx_arch: int  # PTX of this one, for newer devices; 0: none
    n_threads: int  # per CTA
    smem_bytes: int  # per CTA
    rank: int  # the selection rule's order of preference, smaller first

    def covers(self, needed: Features, sm: int) -> bool:
        """Whether a problem that needs these features runs on a GPU of compute capability `sm`."""
        return any(built.covers(needed) for built in self.features) and (
            any(_machine_code_runs(target, sm) for target in self.sm_archs)
            or 0 < self.ptx_arch <= sm
        )


def _machine_code_runs(target: str, sm: int) -> bool:
    """On a GPU of the same major version and no older minor one; "90a" on 90 alone."""
    built = int(target.rstrip("a"))
    return built == sm if target.endswith("a") else built // 10 == sm // 10 and built <= sm


def built_configs(op: str | None = "forward") -> dict[KernelConfig, BuiltConfig]:
    """The config map of an op, in ascending order: by default every config that `attention` can run
    on a GPU. None: those of all ops. Raises ValueError for an op that no family has."""
    if op not in (None, *map(str, OPS)):
        raise ValueError(f"pyflash: unknown op {op!r}: expected one of {', '.join(map(str, OPS))}")
    rows = [_built_config(**row) for row in json.loads(torch.ops.pyflash.config_map())]
    return {row.config: row for row in rows if op in (None, str(row.config.family.op))}


def _built_config(config: str, features: list[str], sm_archs: str, **values: int) -> BuiltConfig:
    known = parse(config)
    return BuiltConfig(
        known,
        tuple(map(known.family.op.features.parse, features)),
        tuple(filter(None, sm_archs.split(","))),
        **values,
    )

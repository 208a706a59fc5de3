"""A config under Nsight Compute: what was predicted beside what was measured.

    result = profile("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles")    # needs a GPU and ncu

The launch is that of `inspection.emulated_traffic`, so that counts have to agree. Utilisation and
stalls mean little for so small a problem: a larger `seqlen` is for them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from pyflash.config import KernelConfig, as_config, parse
from pyflash.inspect.inspection import SEQLEN
from pyflash.ui.tables import Table

if TYPE_CHECKING:
    from pyflash.emulator import Report

REGISTERS = "launch__registers_per_thread"
CTAS = ("launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem")
UTILISATION = {
    "tensor pipe": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "fma pipe": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "alu pipe": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "xu pipe": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active",
    "issue slots": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "warps active": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    reason: _STALL.format(reason)
    for reason in ("barrier", "dispatch_stall", "long_scoreboard", "math_pipe_throttle",
                   "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "wait")
}  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """The figures of one launch. `counts` has (predicted, measured) by quantity; the others leave
    out metrics that this ncu does not know."""

    config: KernelConfig
    seqlen: int
    counts: dict[str, tuple[float, float]]
    resources: dict[str, tuple[float, float]]
    utilisation: dict[str, float]  # percent of peak
    stalls: dict[str, float] = field(default_factory=dict)  # warps stalled per issue

    @property
    def wrong(self) -> list[str]:
        """The counts that differ."""
        return [name for name, (predicted, found) in self.counts.items() if predicted != found]

    def to_json(self, indent: int | None = None) -> str:
        values = {
            name: getattr(self, name)
            for name in ("seqlen", "counts", "resources", "utilisation", "stalls")
        }
        return json.dumps({"config": str(self.config)} | values, indent=indent)

    def tables(self) -> list[Table]:
        columns = ("", "predicted", "measured")
        counts = [(name, *pair) for name, pair in self.counts.items()]
        resources = [(name, *pair) for name, pair in self.resources.items()]
        note = f"1 batch, 2 heads, {self.seqlen} queries and keys"
        return [
            Table.of("counts", columns, counts, note),
            Table.of("resources", columns, resources),
            Table.of_pairs("% of peak", self.utilisation),
            Table.of_pairs("warps stalled per issue", self.stalls),
        ]

    def __rich__(self) -> Group:
        verdict = f"{len(self.wrong)} of {len(self.counts)} counts differ"
        head = Text(f"{self.config}\n{verdict}{': ' if self.wrong else ''}{', '.join(self.wrong)}")
        return Group(head, *self.tables())


def profile(config: KernelConfig | str, seqlen: int = SEQLEN) -> Profile:
    """Launches a config once under ncu, and emulates the same launch.

    Raises RuntimeError without ncu, or where it or the launch fails; ValueError for a family that
    the emulator does not run.
    """
    from pyflash.inspect import ncu_truth
    from pyflash.inspect.inspection import emulated_traffic

    config = as_config(config).canonical()
    if shutil.which("ncu") is None:
        raise RuntimeError("ncu not found: Nsight Compute comes with the CUDA toolkit")
    report = emulated_traffic(config, seqlen)
    names = [*ncu_truth.COUNTERS, *ncu_truth.PER_INSTRUCTION, REGISTERS, *CTAS]
    names += [*UTILISATION.values(), *STALLS.values()]
    with tempfile.TemporaryDirectory(prefix="pyflash-ncu-") as folder:
        path = Path(folder) / "profile"
        command = [
            "ncu", "--force-overwrite", "--section", "SourceCounters", "--kernel-name",
            config.family.kernel, "--launch-count", "1", "--metrics", ",".join(names),
            "--export", str(path), sys.executable, "-m", "pyflash.inspect.profile", str(config),
            str(seqlen),
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True)
        written = path.with_suffix(".ncu-rep")
        if result.returncode != 0 or not written.is_file():
            raise RuntimeError(f"ncu failed:\n{(result.stdout + result.stderr)[-3000:]}")
        (action,) = ncu_truth.actions(written)
        return profile_of(action, report, seqlen)


def profile_of(action: Any, report: Report, seqlen: int = SEQLEN) -> Profile:
    """The profile of an action of ncu's own Python module; its kernel's name tells the config.

    Raises ValueError where that is not the config of the report.
    """
    from pyflash.inspect import ncu_truth

    config = parse(action.name())
    if str(config) != report.config:
        raise ValueError(f"ncu measured {config}, emulated was {report.config}")
    known = set(action.metric_names())

    def values(names: Mapping[str, str]) -> dict[str, float]:
        return {
            label: action.metric_by_name(name).as_double()
            for label, name in names.items()
            if name in known
        }

    found = values({name: name for name in (REGISTERS, *CTAS)})
    return Profile(
        config=config,
        seqlen=seqlen,
        counts=ncu_truth.compare(report, ncu_truth.measured_values(action)),
        resources=_resources(config, found),
        utilisation=values(UTILISATION),
        stalls=values(STALLS),
    )


def _resources(config: KernelConfig, found: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    import torch

    if REGISTERS not in found:
        return {}
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    predicted = config.resources(10 * major + minor)
    pairs = {"registers": (float(predicted.registers), found[REGISTERS])}
    if all(name in found for name in CTAS):
        measured = min(found[name] for name in CTAS)
        pairs["CTAs per SM"] = (float(predicted.num_ctas_per_sm), measured)
    return pairs


def launch(config: KernelConfig, seqlen: int) -> None:
    """Once, for ncu."""
    import torch

    import pyflash
    from pyflash.op.selection import TORCH_DTYPES

    dtype = TORCH_DTYPES[config.dtype]
    q, k, v = (torch.randn(1, seqlen, 2, config.d_head, dtype=dtype).cuda() for _ in range(3))
    pyflash.attention(q, k, v, config=str(config), num_splits=1)
    torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One launch, to be run under ncu.")
    parser.add_argument("config", type=as_config)
    parser.add_argument("seqlen", type=int)
    arguments = parser.parse_args()
    launch(arguments.config, arguments.seqlen)

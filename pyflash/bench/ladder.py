"""The optimisation ladder: what each step brings, and what it changes.

    print(climb(batch=4, heads=16, seqlen=4096))

Each part as far as this machine has what it takes: speed (a GPU), compiled (nvcc and cuobjdump),
traffic (g++, for the emulator). What is missing is named with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.text import Text

from pyflash.codegen.build import BuildError
from pyflash.codegen.compilation import compile_all
from pyflash.codegen.emulated import build_emulated
from pyflash.config import FAMILIES, Arch, DType, KernelConfig
from pyflash.emulator.traffic import SharedTraffic
from pyflash.inspect.compiled import CompiledKernel, compilation, compiled_kernels
from pyflash.inspect.inspection import emulated_traffic
from pyflash.ui.html import bars, bullets, scrolling
from pyflash.ui.page import Paged, Sections, tables_as_sections
from pyflash.ui.tables import Table

PARTS = ("speed", "compiled", "traffic")
SELECTED = "the selected config"  # what the last step adds, where it is none of the others
ALWAYS = (
    "in every step: an epilogue through swizzled shared memory where K and V are swizzled, O "
    "multiplied by 1 / l, K and V blocks from the last to the first"
)
_SHOWN_CLASSES = 3  # of the instructions whose number changed most


@dataclass(frozen=True)
class Step:
    """A part that this machine lacks is None."""

    number: int
    adds: str
    config: KernelConfig
    record: dict[str, Any] | None = None  # of the bench
    kernel: CompiledKernel | None = None  # the plain one
    bank_conflicts: int | None = None  # of the emulated problem

    @property
    def tflops(self) -> float | None:
        return self.record["tflops"] if self.record else None

    @property
    def percent_of_baseline(self) -> float | None:
        """The speed in percent of that of PyTorch's flash backend in the same run."""
        return 100 * self.record["ratio"] if self.record and self.record["ratio"] else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "adds": self.adds,
            "config": str(self.config),
            "bank_conflicts": self.bank_conflicts,
            "compiled": self.kernel.to_dict() if self.kernel else None,
            "record": self.record,
        }


@dataclass(frozen=True)
class Ladder(Paged):
    arch: Arch
    problem: str
    steps: list[Step]
    baseline: dict[str, Any] | None = None  # the record of PyTorch's flash backend
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def page_title(self) -> str:
        device = self.baseline["environment"]["device"] if self.baseline else self.arch
        return f"The ladder on {device}: {self.problem}"

    @property
    def answer(self) -> str:
        measured = [step for step in self.steps if step.tflops]
        if not measured:
            return f"No speed: {self.missing['speed']}." if "speed" in self.missing else ""
        best, first = max(measured, key=lambda step: step.tflops or 0), measured[0]
        ratio = (best.tflops or 0) / (first.tflops or 1)
        return (
            f"Step {best.number} ({best.adds}) is the fastest: {best.tflops:,.0f} TFLOP/s, "
            f"{ratio:.2f} times the speed of step {first.number}."
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "arch": self.arch.name,
            "problem": self.problem,
            "steps": [step.to_dict() for step in self.steps],
            "baseline": self.baseline,
            "missing": self.missing,
        }

    def tables(self) -> list[Table]:
        """The steps with their figures, what changed, and their configs."""
        columns = ("", "TFLOP/s", "% of PyTorch flash", "registers", "spilled bytes",
                   "loop instructions", "bank conflicts")  # fmt: skip
        rows = [(f"{s.number}  {s.adds}", *_figures(s)) for s in self.steps]
        tables = [Table.of("steps", columns, rows, ALWAYS)]
        if changes := self._changes():
            note = "instructions of the plain kernel's main loop, and of a thread's registers"
            tables.append(Table.of("what changed", ("", ""), changes, note))
        configs = [(f"{s.number}  {s.adds}", str(s.config)) for s in self.steps]
        return [*tables, Table.of("configs", ("", ""), configs)]

    def _changes(self) -> list[tuple[str, str]]:
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return [
            (f"{before.number} to {after.number}", what_changed(before, after))
            for before, after in pairs
            if before.kernel and after.kernel
        ]

    def sections(self) -> Sections:
        speeds = {f"{s.number} {s.adds}": s.tflops for s in self.steps if s.tflops}
        if speeds:
            if self.baseline and self.baseline["tflops"]:
                speeds["PyTorch flash"] = self.baseline["tflops"]
            yield "speed", scrolling(bars(speeds, "TFLOP/s"), "TFLOP/s of each step")
        yield from tables_as_sections(self.tables())
        if self.missing:
            yield "missing", bullets(f"no {part}: {why}" for part, why in self.missing.items())

    def __rich__(self) -> Group:
        missing = [Text(f"no {part}: {why}", "dim") for part, why in self.missing.items()]
        return Group(Text(self.page_title), *self.tables(), *missing)


def climb(
    batch: int = 4,
    heads: int = 16,
    seqlen: int = 4096,
    dtype: DType = DType.FP16,
    n_samples: int = 25,
    arch: Arch | str | None = None,
    parts: Sequence[str] = PARTS,
) -> Ladder:
    """The ladder at (batch, seqlen, heads, 128), on this machine's GPU or, without one, of the
    kernels for `arch` (default: sm_90).

    Raises ValueError for an unknown part or architecture.
    """
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"unknown parts {sorted(unknown)}: expected some of {', '.join(PARTS)}")
    found: dict[str, dict[KernelConfig, Any]] = {part: {} for part in PARTS}
    missing: dict[str, str] = {}
    target = _arch(arch)
    ladders = [step for family in FAMILIES for step in family.ladder]
    adds = [*(added for added, _ in ladders), SELECTED]
    configs = [config.replace(dtype=dtype) for _, config in ladders]
    baseline = None
    if "speed" in parts:
        try:
            baseline, configs, found["speed"] = _speed(configs, batch, heads, seqlen, n_samples)
        except (RuntimeError, ImportError) as error:
            missing["speed"] = str(error)
    for part, prepare, measure in (
        ("compiled", _compile, lambda config: compiled_kernels(config, target)[0]),
        ("traffic", _build_emulated, _bank_conflicts),
    ):
        if part not in parts:
            continue
        try:
            prepare(configs, target)
            found[part] = {config: measure(config) for config in configs}
        except (RuntimeError, ValueError) as error:
            missing[part] = str(error)
    steps = [
        Step(number, added, config, *(found[part].get(config) for part in PARTS))
        for number, (added, config) in enumerate(zip(adds, configs, strict=False), 1)
    ]
    problem = f"{dtype.name}, batch {batch}, heads {heads}, seqlen {seqlen}, d_head 128"
    return Ladder(target, problem, steps, baseline, missing)


def what_changed(before: Step, after: Step) -> str:
    """From one step to the next: registers, and the classes of instructions in the main loop whose
    number changed most."""
    first, second = before.kernel, after.kernel
    parts = [f"registers {first.registers} to {second.registers}"]
    mixes = (first.loop.mix, second.loop.mix)
    names = dict.fromkeys([*mixes[0], *mixes[1]])
    pairs = {name: tuple(mix.get(name, 0) for mix in mixes) for name in names}
    conflicts = (before.bank_conflicts, after.bank_conflicts)
    most = sorted(pairs, key=lambda name: -abs(pairs[name][1] - pairs[name][0]))
    changes = [(name, pairs[name]) for name in most[:_SHOWN_CLASSES]]
    if None not in conflicts:
        changes.append(("bank conflicts", conflicts))
    parts += [f"{name} {old:,} to {new:,}" for name, (old, new) in changes if old != new]
    return ", ".join(parts)


def _figures(step: Step) -> tuple[Any, ...]:
    kernel = step.kernel
    compiled: tuple[Any, ...] = (None, None, None)
    if kernel:
        spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
        compiled = (kernel.registers, spilled, kernel.loop.n_instructions)
    return (step.tflops, step.percent_of_baseline, *compiled, step.bank_conflicts)


def _arch(arch: Arch | str | None) -> Arch:
    from pyflash.codegen.build import default_archs

    return Arch.of(arch) if arch is not None else (default_archs() or [Arch.of(90)])[-1]


def _speed(
    configs: list[KernelConfig], batch: int, heads: int, seqlen: int, n_samples: int
) -> tuple[dict[str, Any], list[KernelConfig], dict[KernelConfig, dict[str, Any]]]:
    """The baseline's record, the configs with the one that selection takes, and their records.

    Raises RuntimeError without a GPU; builds what is not built.
    """
    import torch

    import pyflash
    from pyflash.bench import measure, records
    from pyflash.bench.contenders import backends, pyflash_configs
    from pyflash.bench.environment import environment
    from pyflash.op.selection import Problem, select

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU")
    device = torch.device("cuda")
    problem = Problem(
        batch=batch, heads_q=heads, heads_kv=heads, seqlen_q=seqlen, seqlen_k=seqlen, d_head=128,
        dtype=configs[0].dtype, device="cuda",
    )  # fmt: skip
    built = pyflash.built_configs()
    if missing := [config for config in configs if config.canonical() not in built]:
        pyflash.build(missing, features=["plain"])
    best = select(problem).config
    steps = configs if best in configs else [*configs, best]
    contenders = [*backends(problem, ["flash"]), *pyflash_configs(steps)]
    results = [result.record() for result in measure.run(problem, contenders, n_samples)]
    baseline, *found = records.stamped("attention", results, environment(device))
    return baseline, steps, dict(zip(steps, found, strict=True))


def _compile(configs: list[KernelConfig], arch: Arch) -> None:
    """The plain kernels, several at a time."""
    units = [
        compilation(config.canonical(), arch, config.family.op.features()) for config in configs
    ]
    if failures := compile_all(units, f"the ladder for {arch}"):
        raise BuildError(failures, len(units))


def _build_emulated(configs: list[KernelConfig], arch: Arch) -> None:
    build_emulated([c.canonical() for c in configs if c.family.emulation_header])


def _bank_conflicts(config: KernelConfig) -> int | None:
    """Those of all shared memory accesses of the emulated problem; None for a family that the
    emulator does not run."""
    if config.family.emulation_header is None:
        return None
    report = emulated_traffic(config)
    return sum(
        traffic.bank_conflicts
        for paths in report.sites.values()
        for traffic in paths.values()
        if isinstance(traffic, SharedTraffic)
    )

"""The emulator's predictions beside Nsight Compute's counters.

It makes the tables of docs/experiments/2026-11-emulator-and-ncu.md.

    python -m pyflash.inspect.ncu_truth predict FOLDER --family sm90_forward  # needs g++ and nvcc
    python -m pyflash.inspect.ncu_truth measure FOLDER                        # needs a GPU and ncu
    python -m pyflash.inspect.ncu_truth table FOLDER                          # prints Markdown

`predict` runs the configs of a family on the emulator, keeps inputs, outputs and reports in FOLDER,
and builds the same kernels for a GPU there. `measure` runs them under ncu and adds measured.json:
whatever was counted, as it was counted. `table` sets the two side by side.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import pyflash
from pyflash.config import FlashForwardKernelConfig, KernelConfig, parse
from pyflash.config.family import FAMILIES, find_family
from pyflash.config.features import EMULATED, Features
from pyflash.config.record import Family
from pyflash.config.sm90_forward import FlashForwardSm90Config
from pyflash.emulator import GlobalTraffic, Report, SharedTraffic
from pyflash.op.selection import TORCH_DTYPES

CONFIGS = [
    *pyflash.named_set("prog"),
    *map(
        parse,
        (
            "(FP16, 128, 64, 64, 4): load_0_0_0_tiles",
            "(FP16, 128, 64, 64, 4): swizzled+load_2_2_2_tiles",
            "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
            "+rescale_threshold",
            "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
            "(FP16, 64, 128, 32, 8): async+eager+load_2_2_2_tiles+opt_softmax",
        ),
    ),
]
# Both schedules, every number of consumers, both kinds of swizzle, clusters.
SM90_CONFIGS = [
    parse(short_form).canonical()
    for short_form in (
        "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(BF16, 64, 256, 64, 4): sm90+stages_3+overlap+pingpong+persistent+rescale_threshold",
        "(BF16, 64, 192, 128, 3): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(BF16, 96, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(FP16, 128, 128, 64, 2): sm90+stages_3",
        "(BF16, 64, 64, 128, 1): sm90+stages_2+overlap+pack_gqa",
        "(BF16, 128, 64, 64, 1): sm90+stages_3+overlap+rescale_threshold+pack_gqa",
    )
]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """1 batch, or, packed, two sequences of these lengths; 2 heads of q."""

    seqlen_q: int = 200
    seqlen_k: int = 333
    heads_kv: int = 2
    d_head: int | None = None  # None: that of the config
    packed: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def inputs(self, config: KernelConfig) -> tuple[Any, ...]:
        """The positional arguments of attention, or of attention_varlen."""
        batch = 2 if self.packed else 1
        lengths = (self.seqlen_q, self.seqlen_k)
        sizes = zip(
            (lengths[0], lengths[1], lengths[1]), (2, self.heads_kv, self.heads_kv), strict=True
        )
        d_head = min(self.d_head or config.d_head, config.d_head)
        q, k, v = (
            torch.randn(batch, seqlen, heads, d_head, dtype=TORCH_DTYPES[config.dtype])
            for seqlen, heads in sizes
        )
        if not self.packed:
            return q, k, v
        starts = (torch.arange(3, dtype=torch.int32) * length for length in lengths)
        return *(x.flatten(0, 1) for x in (q, k, v)), *starts, *lengths


# Whole tiles of every config, and ragged ones.
PROBLEMS = {"whole": Problem(seqlen_q=256, seqlen_k=256), "ragged": Problem()}
# What the other variants of a kernel are for, and what all of them do; of a few configs.
VARIANT_PROBLEMS = {
    "causal, one head of k and v": Problem(heads_kv=1, options={"causal": True}),
    "window, d_head 72": Problem(d_head=72, options={"window_left": 100, "window_right": 30}),
    "softcap": Problem(options={"softcap": 5.0}),
    "packed": Problem(packed=True),
    "2 splits": Problem(options={"num_splits": 2}),
}
VARIANT_CONFIGS = [CONFIGS[i] for i in (6, 8, 9)]
# Merged by clusters of CTAs.
CLUSTER_PROBLEMS = {
    f"one query, {n} splits": Problem(
        seqlen_q=1, seqlen_k=1000, heads_kv=1, options={"num_splits": n}
    )
    for n in (4, 16)
}
CLUSTER_CONFIG = SM90_CONFIGS[-1]

# What comes from L2 to the SMs, loads of TMA among it.
L2_SECTORS = "l1tex__m_xbar2l1tex_read_sectors.sum"
L2_BYTES = "l1tex__m_xbar2l1tex_read_bytes.sum"
# Counters of the hardware; those that this ncu does not know are left out.
COUNTERS = [L2_SECTORS, L2_BYTES]
# Counted for each instruction of the machine code.
PER_INSTRUCTION = [
    "inst_executed",
    "memory_l1_wavefronts_shared",
    "memory_l1_wavefronts_shared_ideal",
    "memory_l2_theoretical_sectors_global",
    "memory_l2_theoretical_sectors_global_ideal",
]


# What kernels are built with: the combinations that the emulator runs the problems in.
FEATURES = (Features(),)
VARIANT_FEATURES = EMULATED
LIBRARIES = "libpyflash_kernels-*.so"


def cases() -> Iterable[tuple[str, KernelConfig, Problem]]:
    """(name, config, problem) of every launch, in the order in which they are launched."""
    for config in (*CONFIGS, *SM90_CONFIGS):
        problems = PROBLEMS | (VARIANT_PROBLEMS if config in VARIANT_CONFIGS else {})
        problems |= CLUSTER_PROBLEMS if config == CLUSTER_CONFIG else {}
        for name, problem in problems.items():
            yield f"{config} | {name}", config, problem


def predicted(folder: Path) -> dict[str, Report]:
    """By the name of the launch, in the order of `cases`."""
    reports = json.loads((folder / "predicted.json").read_text())
    return {name: Report.from_json(text) for name, text in reports.items()}


def predict(folder: Path, family: Family, arch: str) -> None:
    from pyflash.codegen.build import build_kernels
    from pyflash.codegen.emulated import build_emulated

    chosen = [case for case in cases() if case[1].family is family]
    configs = list(dict.fromkeys(config for _, config, _ in chosen))
    build_emulated(configs)
    folder.mkdir(parents=True, exist_ok=True)
    reports, tensors = {}, {}
    torch.manual_seed(0)
    for name, config, problem in chosen:
        inputs = problem.inputs(config)
        emulate = pyflash.emulate_varlen if problem.packed else pyflash.emulate
        out, lse, report = emulate(*inputs, config, **problem.options)
        report.check()
        reports[name] = report.to_json()
        tensors[name] = (inputs, out, lse)
    (folder / "predicted.json").write_text(json.dumps(reports, indent=1) + "\n")
    torch.save(tensors, folder / "tensors.pt")
    for name, of_variants, features in (
        ("plain", False, FEATURES),
        ("variants", True, VARIANT_FEATURES),
    ):
        if some := [config for config in configs if (config in VARIANT_CONFIGS) is of_variants]:
            build_kernels(some, [arch], out_dir=folder, name=name, features=features)


def launch(folder: Path) -> None:
    """Every kernel once, in order, for ncu. Writes how far outputs are from the emulator's."""
    for library in sorted(folder.glob(LIBRARIES)):
        pyflash.load(library)
    tensors = torch.load(folder / "tensors.pt", weights_only=True)
    differences = {}
    for name, config, problem in cases():
        if name not in tensors:
            continue
        inputs, out, lse = tensors[name]
        on_gpu = (x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs)
        attention = pyflash.attention_varlen if problem.packed else pyflash.attention
        options = {"num_splits": 1, **problem.options}
        out_gpu, lse_gpu = attention(*on_gpu, config=config, return_lse=True, **options)
        differences[name] = {
            "out": (out_gpu.cpu().float() - out.float()).abs().max().item(),
            "lse": (lse_gpu.cpu() - lse).abs().max().item(),
        }
    (folder / "differences.json").write_text(json.dumps(differences, indent=1) + "\n")


def measure(folder: Path) -> None:
    report = folder / "truth"
    names = [*COUNTERS, *PER_INSTRUCTION]
    kernels = "|".join(family.kernel for family in FAMILIES)
    while True:
        command = [
            "ncu", "--force-overwrite", "--clock-control", "none", "--section", "SourceCounters",
            "--kernel-name", f"regex:^({kernels})$", "--metrics", ",".join(names),
            "--export", str(report), sys.executable, "-m", "pyflash.inspect.ncu_truth", "launch",
            str(folder),
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True)
        print(result.stdout[-3000:], result.stderr[-3000:])
        unknown = [name for name in names if re.search(rf"metric {re.escape(name)}", result.stdout)]
        if result.returncode == 0 or not unknown:
            break
        print(f"without what this ncu does not know: {unknown}")
        names = [name for name in names if name not in unknown]
    result.check_returncode()
    found = actions(report.with_suffix(".ncu-rep"))
    expected = list(predicted(folder))
    assert len(found) == len(expected), f"{len(found)} kernels, expected {len(expected)}"
    measured = {name: measured_values(action) for name, action in zip(expected, found, strict=True)}
    (folder / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")


def actions(report: Path) -> list[Any]:
    """The launches in a report file, by the Python module that comes with ncu."""
    ncu = Path(shutil.which("ncu")).resolve()
    homes = [*ncu.parents, *Path("/opt/nvidia/nsight-compute").glob("*")]
    sys.path += [str(home / "extras" / "python") for home in homes]
    import ncu_report

    loaded = ncu_report.load_report(str(report))
    ranges = (loaded.range_by_idx(i) for i in range(loaded.num_ranges()))
    return [r.action_by_idx(i) for r in ranges for i in range(r.num_actions())]


def measured_values(action: Any) -> dict[str, Any]:
    """Counters by name, and per opcode the sum over its instructions of each metric they have."""
    known = set(action.metric_names())
    by_opcode: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name in known:
        metric = action.metric_by_name(name)
        if name not in (*COUNTERS, *PER_INSTRUCTION) or not metric.num_instances():
            continue
        if not metric.has_correlation_ids():
            continue
        places = metric.correlation_ids()
        for i in range(metric.num_instances()):
            opcode = _opcode(action.sass_by_pc(places.as_uint64(i)))
            by_opcode[opcode][name] += metric.as_double(i)
    counters = {name: action.metric_by_name(name).as_double() for name in COUNTERS if name in known}
    return {"kernel": action.name(), "counters": counters, "by_opcode": by_opcode}


def _opcode(sass: str) -> str:
    words = [word for word in sass.split() if not word.startswith("@")]
    return words[0].rstrip(";") if words else "?"


def compare(report: Report, measured: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """What the emulator said and what ncu counted, by quantity."""
    return _compare(parse(report.config), report, measured)


@functools.singledispatch
def _compare(
    config: KernelConfig, report: Report, measured: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    raise ValueError(f"{config}: not known what ncu counts of the family {config.family}")


def _gpu(measured: dict[str, Any], pattern: str, *metrics: str) -> float:
    """The first metric's sum over the opcodes that match, less the others'."""
    first, *others = (
        sum(
            values.get(metric, 0)
            for opcode, values in measured["by_opcode"].items()
            if re.match(pattern, opcode)
        )
        for metric in metrics
    )
    return first - sum(others)


def _emulated(report: Report, kind: type, attribute: str, *paths: str) -> int:
    """Summed over what matches 'site path'."""
    return sum(
        getattr(traffic, attribute)
        for site, by_path in report.sites.items()
        for path, traffic in by_path.items()
        if isinstance(traffic, kind)
        and any(re.fullmatch(pattern, f"{site} {path}") for pattern in paths)
    )


@_compare.register
def _(
    config: FlashForwardSm90Config, report: Report, measured: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    counts = report.counts
    executed = {
        "HGMMA": 4 * (counts.wgmma_ss + counts.wgmma_rs),
        "UTMALDG": counts.tma_boxes,
        "SYNCS.ARRIVE": counts.mbarrier_arrivals + counts.mbarrier_expects,
        "BAR.SYNC": counts.barriers * (config.n_threads // 32) + counts.named_syncs,
        "BAR.ARV": counts.named_arrivals,
        "UCGABAR_ARV": counts.cluster_syncs,
        "MUFU.EX2": counts.exponential_instructions,
        "SHFL.BFLY": counts.shuffles,
        "STSM": counts.stmatrix,
    }
    rows = {
        opcode: (predicted, _gpu(measured, re.escape(opcode), "inst_executed"))
        for opcode, predicted in executed.items()
    }
    rows["sectors stored"] = (
        _emulated(report, GlobalTraffic, "sectors", ".* global_store"),
        _gpu(measured, r"STG\b", "memory_l2_theoretical_sectors_global"),
    )
    for what, counter in (("sectors", L2_SECTORS), ("bytes", L2_BYTES)):
        if counter in measured["counters"]:
            loaded = _emulated(report, GlobalTraffic, what, ".* global_load")
            rows[f"{what} from L2"] = (loaded, measured["counters"][counter])
    return rows


@_compare.register
def _(
    config: FlashForwardKernelConfig, report: Report, measured: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    gpu = functools.partial(_gpu, measured)
    emulated = functools.partial(_emulated, report)

    g2s = "[QKV]_g2s shared_store"
    stores = ["O_r2s shared_store"] if config.async_copy else ["O_r2s shared_store", g2s]
    copies = [g2s] if config.async_copy else []
    excess = ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal")
    counts = report.counts
    rows = {
        "mma": (counts.mma, gpu("HMMA", "inst_executed")),
        "ldmatrix": (counts.ldmatrix, gpu("LDSM", "inst_executed")),
        "cp.async": (
            emulated(SharedTraffic, "instructions", *copies),
            gpu("LDGSTS", "inst_executed"),
        ),
        "shuffles": (counts.shuffles, gpu("SHFL", "inst_executed")),
        "barriers": (counts.barriers * config.n_warps, gpu(r"BAR\.SYNC", "inst_executed")),
        "exponentials": (counts.exponential_instructions, gpu(r"MUFU\.EX2", "inst_executed")),
    }
    for what, opcode, paths in (
        ("ldmatrix", "LDSM", ["[QKV]_s2r shared_load"]),
        ("loads", r"LDS\b(?!M)", ["O_s2g shared_load"]),
        ("stores", "STS", stores),
        ("cp.async", "LDGSTS", copies),
    ):
        wavefronts = emulated(SharedTraffic, "wavefronts", *paths)
        conflicts = emulated(SharedTraffic, "bank_conflicts", *paths)
        rows[f"wavefronts, {what}"] = (wavefronts, gpu(opcode, excess[0]))
        rows[f"conflicts, {what}"] = (conflicts, gpu(opcode, *excess))
    for what, opcode, path in (
        ("loaded", r"LDG\b|LDGSTS", ".* global_load"),
        ("stored", r"STG\b", ".* global_store"),
    ):
        rows[f"sectors {what}"] = (
            emulated(GlobalTraffic, "sectors", path),
            gpu(opcode, "memory_l2_theoretical_sectors_global"),
        )
    return rows


def table(folder: Path) -> str:
    """Markdown: a row per launch; a cell is one number where both agree, else emulated / ncu."""
    measured = json.loads((folder / "measured.json").read_text())
    differences = json.loads((folder / "differences.json").read_text())
    lines: list[list[str]] = []
    for name, report in predicted(folder).items():
        rows = compare(report, measured[name])
        if not lines:
            header = ["config", *rows, "max difference of out", "of lse"]
            lines += [header, ["---"] * len(header)]
        cells = [f"{a:g}" if a == b else f"**{a:g} / {b:g}**" for a, b in rows.values()]
        apart = [f"{differences[name][key]:.1e}" for key in ("out", "lse")]
        lines.append([name.replace("|", "·"), *cells, *apart])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stage", choices=("predict", "launch", "measure", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", default="sm90_forward", help="that predict runs")
    parser.add_argument("--arch", default="90", help="that predict builds for")
    arguments = parser.parse_args()
    if arguments.stage == "predict":
        predict(arguments.folder, find_family(arguments.family), arguments.arch)
    elif arguments.stage == "launch":
        launch(arguments.folder)
    elif arguments.stage == "measure":
        measure(arguments.folder)
    else:
        print(table(arguments.folder))


if __name__ == "__main__":
    main()

"""What every command is given for a config of a family, in which ways it is run, and in which words
it refuses where this machine lacks something or options exclude each other."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

from support.bench_records import run_of_four
from support.profiles import RECORDED

from pyflash.config import FAMILIES, Family, KernelConfig

FILES = sorted(map(str, RECORDED.glob("*.csv")))


@functools.cache
def config_of(family: Family) -> KernelConfig:
    """The one that is least work, of those that selection prefers."""
    legal = [config for config in family.ranked if config.is_legal("sm_90")]
    return min(legal, key=lambda config: (config.smem_bytes, str(config)))


def other(config: KernelConfig) -> KernelConfig:
    """A config of the next family."""
    return config_of(FAMILIES[(FAMILIES.index(config.family) + 1) % len(FAMILIES)])


def space_of(config: KernelConfig) -> list[str]:
    values = {name: getattr(config, name) for name in config.field_types()}
    words = {n: getattr(v, "name", str(v).lower()) for n, v in values.items()}
    return [config.family.name, *(f"{name}={word}" for name, word in words.items())]


def problem_of(config: KernelConfig) -> str:
    return f"{config.dtype.name.lower()},batch=1,heads=2,seqlen=64,d_head={config.d_head}"


EMPTY: list[str] = []
# What a parameter of this name is given, in every command that has it.
GIVEN: dict[str, Callable[[KernelConfig], list[str]]] = {
    "config": lambda config: [str(config)],
    "configs": lambda config: [str(config)],
    "first": lambda config: [str(config)],
    "second": lambda config: [str(other(config))],
    "values": space_of,
    "space": lambda config: [" ".join(space_of(config))],
    "problem": lambda config: [problem_of(config)],
    "dtype": lambda config: [config.dtype.name.lower()],
    "d_head": lambda config: [str(config.d_head)],
    "batch": lambda _: ["1"],
    "heads": lambda _: ["2"],
    "seqlen": lambda _: ["64"],
    "seqlen_q": lambda _: ["64"],
    "seqlen_k": lambda _: ["64"],
    "tokens": lambda _: ["64"],
    "samples": lambda _: ["2"],
    "arch": lambda _: ["sm_90"],
    "device": lambda _: ["cpu"],
    "variant": lambda _: ["window"],
    "passes": lambda config: [config.family.op.name],
}
# By these a command is known to be about a config, or about a problem.
OF_A_FAMILY = {"config", "configs", "first", "values", "problem", "dtype", "d_head"}
# Files that are read; other paths are outputs.
INPUTS = {"read", "journal", "library", "paths"}
# What parameters of a command are given instead, in each way to run it; True: a flag.
Way = Callable[[KernelConfig, Path], dict[str, list[str] | bool]]
_RECORDED = {"d_head": ["128"], "dtype": ["bf16"], "heads": ["16"], "tokens": ["16384"]}
_PLAIN: dict[str, list[str] | bool] = {"variant": EMPTY}
WAYS: dict[str, list[Way]] = {
    "build": [
        lambda *_: _PLAIN | {"arch": []},
        lambda *_: _PLAIN | {"list_configs": True},
        lambda *_: _PLAIN | {"dry_run": True},
        lambda _, folder: _PLAIN | {"emit_to": [str(folder)]},
        lambda *_: {"dry_run": True},  # with a variant, here and below
        lambda _, folder: {"emit_to": [str(folder)]},
    ],
    "select": [lambda *_: _PLAIN, lambda *_: {}],
    "inspect": [lambda *_: _PLAIN, lambda *_: {"part": ["compiled"]}],
    "diff": [lambda *_: _PLAIN, lambda *_: {}],
    "bench": [
        lambda *_: _PLAIN | {"backend": ["none"]},
        lambda *_: {"backend": ["none"]},
        # Beside --read other options ask for some of the records: here for all.
        lambda _, folder: dict.fromkeys(GIVEN, EMPTY) | {"read": [str(records_file(folder))]},
    ],
    "emulate": [
        lambda *_: {"variant": EMPTY},
        lambda *_: (
            dict.fromkeys(("batch", "seqlen_q", "seqlen_k", "variant"), EMPTY)
            | {"cu_seqlens_q": ["0,5,70"], "cu_seqlens_k": ["0,64,64"]}
        ),
        lambda *_: {},  # with a variant
    ],
    "tune": [
        lambda *_: _PLAIN | {"config": [], "device": []},
        lambda *_: _PLAIN | {"config": [], "dry_run": True},
        lambda config, folder: _PLAIN | {"config": [], "read": [str(journal_file(folder, config))]},
        lambda *_: {"config": [], "dry_run": True},
    ],
    "ladder": [lambda *_: {"part": ["speed"]}],  # other parts compile eight configs
    "compare": [
        lambda *_: _RECORDED | {"config": [], "paths": FILES, "seqlen": ["4096"]},
        lambda *_: {"config": [], "paths": FILES[:2], "seqlen": []},
        lambda *_: {"cutlass_profiler": True},
    ],
}
# What a command says whose line has all of these words, if it does not end with 0 here.
REFUSALS: dict[tuple[str, ...], str] = {
    ("build",): r"no architecture to build for: this machine has no GPU",
    **{
        ("build", option): rf"(?=.*{option} ).*exclude each other"
        for option in ("--ops", "--list", "--emit-to")
    },
    ("build", "--dry-run"): "--dry-run .*exclude each other|no architecture to build for",
    ("tune",): "no GPU to tune for|forward alone is tuned",
    ("tune", "--read", "--install"): "--read .*no --install",
    ("tune", "--read", "--dry-run"): "--read .*no --dry-run",
    ("tune", "--dry-run", "--install"): "--dry-run .*no --install",
    ("tune", "--dry-run", "--html"): "--dry-run .*no --html",
    ("tune", "--dry-run", "--picture"): "--dry-run .*no --picture",
    ("profile",): "no CUDA GPU|ncu not found",
    ("registers",): "default set is not built: name one|no kernel library is built",
    ("diff",): "nvcc|cuobjdump",
    ("emulate", "--cu-seqlens-q"): "kernels of op backward take none",
    ("emulate", "--alibi-slopes"): "no kernel of op backward takes that",
    ("emulate", "--variant"): "kernels of sm(80|90)_backward take none",
    ("emulate", "--alibi-slopes", "--variant"): "slopes came with a variant|backward take none",
    ("build", "--ops", "--variant"): "--ops .*exclude each other",
    ("build", "--keep-going", "--variant"): "--keep-going .*exclude each other",
    ("build", "--variant"): "kernels of sm(80|90)_backward take none",
    **{
        ("build", option, "--variant"): f"(?=.*{option} ).*exclude each other|take none"
        for option in ("--dry-run", "--emit-to")
    },
    ("build", "--dry-run", "--emit-to", "--variant"): "exclude each other",
    ("select", "--alibi-slopes", "--variant"): "slopes came with a variant",
    ("inspect", "--variant"): "kernels of sm(80|90)_backward take none",
    ("diff", "--variant"): "kernels of sm(80|90)_backward take none|nvcc|cuobjdump",
    ("tune", "--dry-run", "--variant"): "forward alone is tuned",
    ("tune", "--read", "--variant"): "--read .*no --variant",
    ("tune", "--install", "--variant"): "tables have no variants|--install",
    ("bench", "--variant"): "--variant is timed forward alone",
    ("bench", "--variant", "--roofline"): "no roofline: |timed forward alone",
    ("bench", "--variant", "--format", "cutlass"): "columns hold full and causal|forward alone",
    ("bench", "--host", "--variant"): "--host has no .*its calls are fixed",
    ("bench", "--read", "--variant"): "none of its 4 records fits --variant",
    ("bench", "--out", "--read"): "--read .*no --out",
    ("bench", "--host", "--read"): "--read .*no --host",
    ("bench", "--decode", "--read"): "none of its 4 records fits --decode",
    (
        "bench",
        "--pass",
        "backward",
        "--format",
        "cutlass",
    ): "hold forward passes|forward alone",
    ("bench", "--pass", "backward", "--plot"): "no contender was timed|timed forward alone",
    ("bench", "--pass", "backward", "--roofline"): "no forward pass was timed|timed forward alone",
    ("bench", "--host"): "--host has no .*its calls are fixed",
    ("bench", "--roofline"): "no roofline: the peak rates of .* are not known|timed forward",
    (
        "bench",
        "--format",
        "markdown",
    ): "no figures of pyflash and PyTorch|forward alone",
    ("compare", "--cutlass-profiler"): "no GPU|takes one path",
    ("compare", "--csv"): "--csv .*--cutlass-profiler",
    ("cache", "--all"): "go with --prune",
    ("cache", "--bad"): "go with --prune",
    ("cache", "--dry-run"): "go with --prune",
}


# What a command that ends with 0 says on stderr, a line each.
PROGRESS = "|".join(
    (
        r"\[\d+/\d+\] \d+ s, .*",
        r".*: (compiling \d+, \d+ at a time, reusing \d+.*|all \d+ objects reused)",
        r".*\.so: linked \d+ objects into .*",
        r"waiting for another build that holds .*",
        r"emulating .*, about \d+ s",
        r"asking the rules of [\d,]+ configs(: [\d,]+ of [\d,]+)?",
        r"(looking inside of|comparing|climbing|reading every entry|asking the rules and) .*",
        r"timing .*",
        r"\d+ configs|\d+ to compile, \d+ to reuse",
        r"device .*, torch .*",
    )
)


def records_file(folder: Path) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in run_of_four()))
    return path


def journal_file(folder: Path, config: KernelConfig) -> Path:
    """The journal of a run on a GPU that is not here."""
    path = folder / "journal.jsonl"
    measured = {"problem": problem_of(config), "config": str(config), "features": "plain"}
    records = [
        {"kind": "run", "gpu": "NVIDIA H200", "sm": 90, "refused": {"smem_limit": 3}},
        {"kind": "sample", **measured, "rung": 2, "seconds": 1e-5},
        {"kind": "winner", **measured, "seconds": 1e-5, "runners_up": {}},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path

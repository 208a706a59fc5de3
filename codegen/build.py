"""Builds the two kinds of shared libraries: the op's, and those of kernels.

    library = build_kernels(named_set("tune"), ["sm_90"], name="tune")
    library = build_on_demand(["(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"])

Objects are compiled once (codegen.compilation); a library is linked from them, with a record of
what is inside beside it: libpyflash_kernels-tune.so and libpyflash_kernels-tune.json.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyflash.codegen import (
    config_header,
    emit,
    kernel_libraries,
    library_objects,
    toolchain,
)
from pyflash.codegen.cache import object_problem
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.cache_locks import locked_for
from pyflash.codegen.compilation import ROOT, Compilation, Compiler, compile_all, waiting
from pyflash.codegen.config_map import Row
from pyflash.codegen.kernel_libraries import LIB_DIR
from pyflash.codegen.linking import link, reusable
from pyflash.codegen.precompiled import headers_for, using
from pyflash.config import KernelConfig, as_config, parse
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.op import PLAIN, KernelFeatures, combinations
from pyflash.installation import VERSION
from pyflash.third_party.cuda import find_nvcc, machine_archs
from pyflash.variant import Variant
from pyflash.variant.summed import Summed

# Sources that precompiling the standard library's headers takes less time than it saves.
_STANDARD_PAYS_FROM = 8

# Between a config and a variant, in the names of records.
_WITH = " with "

ArchsOf = Mapping[KernelConfig, Sequence[Arch]]


class BuildError(RuntimeError):
    """Some sources did not compile. `library` is what was linked from the others, if it was."""

    def __init__(self, failures: Sequence[Compilation], n_all: int, library: Path | None = None):
        reports = [f"{c.label}\n{c.first_errors()}\nlog: {c.log}" for c in failures]
        head = f"{len(failures)} of {n_all} did not compile"
        super().__init__("\n\n".join([head, *reports]))
        self.failures = list(failures)
        self.library = library


def build_kernels(
    configs: Iterable[KernelConfig | str],
    archs: Iterable[Arch | str | int] | None = None,
    out_dir: Path | None = None,
    name: str = "default",
    keep_going: bool = False,
    features: Iterable[KernelFeatures | str] | None = None,
    more_features: Iterable[KernelFeatures | str] = (),
    rebuild: Sequence[str] = (),
    line_info: bool = True,
) -> Path:
    """Builds out_dir/libpyflash_kernels-<name>.so and returns its path; by default in the user's
    cache, from where every process loads it. `rebuild` is the command line, but for `--out`, that
    does the same; `line_info` lets profilers show the lines of instructions.

    It holds the canonical configs that stand for `configs`, which may be of several families, each
    for those of `archs` (default: `default_archs()`) on which it is legal, with a kernel for each
    of these combinations of features: `features`, by default those that the config's family builds,
    and `more_features`.

    Raises ValueError before any compiler runs: no configs, no archs, a name that is none, or
    configs that are legal on none of the archs, each with its violations. Raises BuildError with
    each config that did not compile; the library is then left as it was, or, with `keep_going`,
    holds the others.
    """
    folder = kernel_libraries.user_dir(abi(), name) if out_dir is None else out_dir
    path = kernel_libraries.library_file(folder, name)
    archs_of = legal_archs(configs, default_archs() if archs is None else archs)
    all_archs = _all_archs(archs_of)
    more_features = combinations(more_features)
    if features is not None:
        features, more_features = [*combinations(features), *more_features], []
    ops = dict.fromkeys(config.family.op for config in archs_of)
    only, more = (
        list(dict.fromkeys(str(op.features.of(f)) for op in ops for f in found))
        for found in (features or (), more_features)
    )
    rebuild = rebuild or kernel_libraries.rebuild_command(
        name,
        [config.short_form() for config in archs_of],
        [arch.sm for arch in all_archs],
        more,
        only,
    )
    with locked_for([path], waiting):
        rows = rows_of(archs_of, features, more_features)
        kernels = kernel_compilations(archs_of, features, more_features, line_info)
        what = f"kernel library {name} for {', '.join(map(str, all_archs))}"
        failures = compile_all(list(kernels.values()), what)
        good = {config: c for config, c in kernels.items() if c not in failures}
        library = None
        if good and (keep_going or not failures):
            rows = {config: rows[config] for config in good}
            objects = [library_objects.compiled_code(good, rows), *library_objects.support(rows)]
            library = _link_kernels(path, objects, good.values(), rebuild)
    if failures:
        raise BuildError(failures, len(kernels), library)
    return library


def build_on_demand(
    configs: Iterable[KernelConfig | str],
    archs: Iterable[Arch | str | int] | None = None,
    features: Iterable[KernelFeatures | str] | None = None,
    more_features: Iterable[KernelFeatures | str] = (),
) -> Path:
    """A kernel library of `configs`, from the cache where it is in it: kept under a hash of all
    that it is made of, so that its path is its contents. Of many processes that want it one builds,
    and the others wait. Arguments and errors are those of `build_kernels`.
    """
    archs_of = legal_archs(configs, default_archs() if archs is None else archs)
    kernels = kernel_compilations(archs_of, features, more_features)
    rows = rows_of(archs_of, features, more_features)
    support = library_objects.support(rows)
    # Before kernels are compiled their files are known, and not their names.
    files = library_objects.machine_code(
        library_objects.code(kernels[c], map(str, rows[c].features)) for c in kernels
    )
    keys = [c.key for c in (*kernels.values(), files, *support)]
    key = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16]
    name = next(iter(kernels.values())).stem if len(kernels) == 1 else f"{len(kernels)}_configs"
    library = kernel_libraries.library_file(cache_dir() / "jit" / key, name)
    if not reusable(library):
        with locked_for([library], waiting):
            if not reusable(library):
                what = f"config {name}" if len(kernels) == 1 else f"{len(kernels)} configs"
                what += f" for {', '.join(map(str, _all_archs(archs_of)))}"
                if failures := compile_all(list(kernels.values()), what):
                    raise BuildError(failures, len(kernels))
                objects = [library_objects.compiled_code(kernels, rows), *support]
                _link_kernels(library, objects, kernels.values(), ())
    return library


def build_with_variants(
    variants: Sequence[Variant | Summed],
    configs: Iterable[KernelConfig | str],
    archs: Iterable[Arch | str | int] | None = None,
    features: Iterable[KernelFeatures | str] = (PLAIN,),
    library: Path | None = None,
    rebuild: Sequence[str] = (),
) -> Path:
    """A kernel library of each of `configs` with each of `variants`, with a kernel for each of
    these combinations of features; by default in the cache, under a hash of all that it is made of,
    and without the lines of instructions, since a call may wait for it. Errors are those of
    `build_kernels`.
    """
    archs_of = legal_archs(configs, default_archs() if archs is None else archs)
    features = combinations(features)
    of_pairs = variant_compilations(variants, archs_of, features, line_info=library is not None)
    kernels = list(of_pairs.values())
    rows = {
        (config, variant): Row(
            archs_of[config], config.family.op.features.in_dispatch_order(features)
        )
        for config, variant in of_pairs
    }
    launching, *support = library_objects.variant_support(rows)
    # As in `build_on_demand`.
    files = library_objects.machine_code(
        library_objects.code(c, map(str, rows[pair].features), {}) for pair, c in of_pairs.items()
    )
    names = "_".join(variant.key for variant in dict.fromkeys(variants))
    in_cache = library is None
    if library is None:
        keys = [c.key for c in (*kernels, files, launching, *support)]
        key = hashlib.sha256(" ".join(keys).encode()).hexdigest()
        folder = cache_dir() / "jit" / key[:16]
        library = kernel_libraries.library_file(folder, f"variant_{names[:100]}")
    if not (in_cache and reusable(library)):
        with locked_for([library], waiting):
            if not (in_cache and reusable(library)):
                what = f"{len(kernels)} kernels with a variant"
                if failures := compile_all([*kernels, launching], what):
                    raise BuildError(failures, len(kernels))
                code = library_objects.compiled_variant_code(of_pairs, rows)
                _link_kernels(library, [code, launching, *support], kernels, rebuild)
    return library


def build_ops(out_dir: Path = LIB_DIR) -> Path:
    """Builds out_dir/libpyflash_ops.so, the torch op; returns its path. Needs torch's headers, and
    neither CUDA nor CUTLASS.

    Raises BuildError with the sources that did not compile, RuntimeError where there is no torch.
    """
    host = _sources_of("host", toolchain.cpp_compiler())
    bindings = _sources_of("bindings", toolchain.op_compiler())
    missing = [c for c in host if object_problem(c.object)]
    standard = ROOT / "cute_kernels" / "host" / "standard.h"
    headers = headers_for(missing, standard, pays_from=_STANDARD_PAYS_FROM)
    compilations = [*bindings, *host]
    # The header beside the longest sources, so that no core waits for it.
    precompiled = [h for h in headers.values() if not h.object.exists()]
    failures = compile_all([*precompiled, *bindings], "op library, what knows torch")
    failures += compile_all([using(c, headers) for c in host], "op library, the rest")
    if failures := [c for c in failures if c.compiler.object_suffix == ".o"]:
        raise BuildError(failures, len(compilations))
    # By name only: no symbol of one torch version gets into the library, and at run time the name
    # leads to whichever torch the process has loaded.
    torch = ["-L", str(toolchain.torch_dir() / "lib"), "-Wl,--no-as-needed", "-ltorch_cpu", "-ldl"]
    # Nothing is exported: a copy of libstdc++, which some linkers take in, would otherwise share
    # half of its symbols with the one that torch loaded, and crash.
    exports = ROOT / "cute_kernels" / "op_library.map"
    options = [*torch, f"-Wl,--version-script={exports}", "-Wl,--no-undefined"]
    record = {"version": VERSION}
    return link(out_dir / "libpyflash_ops.so", compilations, options, record)


def _sources_of(room: str, compiler: Compiler) -> list[Compilation]:
    folder = ROOT / "cute_kernels" / room
    return [Compilation.of_file(path, compiler) for path in sorted(folder.glob("*.cpp"))]


@functools.cache
def abi() -> str:
    """The ABI that a kernel library shares with the op library:
    torch.ops.pyflash.kernel_library_abi()."""
    registry = (ROOT / "cute_kernels" / "registry.h").read_text()
    (number,) = re.findall(r"kKernelLibraryAbi = (\d+);", registry)
    return f"{number}-{config_header.configs_digest()}"


def legal_archs(
    configs: Iterable[KernelConfig | str], archs: Iterable[Arch | str | int]
) -> dict[KernelConfig, list[Arch]]:
    """For each canonical config, the archs, ascending, on which it is legal: what will be compiled.

    Raises ValueError where there is nothing to build, or for configs that are legal on none.
    """
    known = sorted({Arch.of(arch) for arch in archs}, key=_sm)
    configs = emit.canonical_configs(map(as_config, configs))
    if not configs:
        raise ValueError("no configs to build")
    if not known:
        raise ValueError(
            "no architecture to build for: this machine has no GPU that nvidia-smi knows of; pass "
            "--arch (archs in Python) or set PYFLASH_ARCHS, such as 80,90"
        )
    archs_of = {config: [a for a in known if not config.violations(a)] for config in configs}
    if refused := [config for config, legal in archs_of.items() if not legal]:
        reasons = [
            f"{config} on {arch}: {sentence}"
            for config in refused
            for arch in known
            for _, sentence in config.violations(arch)
        ]
        count = f"{len(refused)} config{'s' * (len(refused) > 1)} cannot be built:"
        raise ValueError("\n".join([count, *reasons]))
    return archs_of


def default_archs() -> list[Arch]:
    """PYFLASH_ARCHS, such as "80,90", or "" for none; without it `nearest_archs` of this machine's
    GPUs."""
    override = os.environ.get("PYFLASH_ARCHS")
    if override is not None:
        return [Arch.of(sm) for sm in re.findall(r"[^,; ]+", override)]
    return nearest_archs(machine_archs())


def nearest_archs(sms: Iterable[int]) -> list[Arch]:
    """The architectures to build for, ascending, where GPUs have these compute capabilities: for
    one that is not known the nearest older one, whose code or PTX it runs."""
    known = [arch.sm for arch in ARCHS]
    usable = {max(sm for sm in known if sm <= found) for found in sms if found >= min(known)}
    return [Arch.of(sm) for sm in sorted(usable)]


def that_run_on(
    configs: Iterable[KernelConfig], archs: Iterable[Arch | str | int]
) -> list[KernelConfig]:
    """Those of a named set whose family has instructions for some of `archs`: a set names configs
    of several families, and no GPU runs them all."""
    sms = {Arch.of(arch).sm for arch in archs}
    return [c for c in configs if not c.family.runs_on or sms & set(c.family.runs_on)]


def kernel_compilations(
    archs_of: ArchsOf,
    features: Iterable[KernelFeatures | str] | None = None,
    more_features: Iterable[KernelFeatures | str] = (),
    line_info: bool = True,
) -> dict[KernelConfig, Compilation]:
    """The object of each config with these combinations of features, by default those that its
    family builds, and `more_features`; compiled already or not."""
    features = None if features is None else combinations(features)
    more_features = combinations(more_features)
    cutlass = toolchain.cutlass_identity()
    compiler = functools.cache(
        lambda targets: toolchain.device_compiler(targets, cutlass, "-fatbin", line_info)
    )
    return {
        config: Compilation(
            label=config.short_form(),
            stem=emit.file_stem(config),
            text=emit.emit_config(config, compiled_features(config, features, more_features)),
            compiler=compiler(config.family.targets(archs)),
        )
        for config, archs in archs_of.items()
    }


def variant_compilations(
    variants: Iterable[Variant | Summed],
    archs_of: ArchsOf,
    features: Iterable[KernelFeatures | str] = (PLAIN,),
    line_info: bool = True,
) -> dict[tuple[KernelConfig, Variant | Summed], Compilation]:
    """The object of each config with each variant, with these combinations of features; compiled
    already or not. Raises ValueError for a config whose kernels take no variant."""
    features = combinations(features)
    cutlass = toolchain.cutlass_identity()
    compiler = functools.cache(
        lambda targets: toolchain.device_compiler(targets, cutlass, "-fatbin", line_info)
    )
    return {
        (config, variant): Compilation(
            label=f"{config.short_form()}{_WITH}{variant.name} {variant.key}",
            stem=emit.variant_stem(config, variant),
            text=emit.emit_with_variant(
                config, variant, config.family.op.features.in_dispatch_order(features)
            ),
            compiler=compiler(config.family.targets(archs)),
        )
        for variant in dict.fromkeys(variants)
        for config, archs in archs_of.items()
    }


def rows_of(
    archs_of: ArchsOf,
    features: Iterable[KernelFeatures | str] | None = None,
    more_features: Iterable[KernelFeatures | str] = (),
) -> dict[KernelConfig, Row]:
    """The row of each config in the config map. Raises ValueError as `compiled_features` does."""
    return {
        config: Row(archs, compiled_features(config, features, more_features))
        for config, archs in archs_of.items()
    }


def compiled_features(
    config: KernelConfig,
    features: Iterable[KernelFeatures | str] | None = None,
    more_features: Iterable[KernelFeatures | str] = (),
) -> Sequence[KernelFeatures]:
    """The combinations that `build_kernels` compiles a config with, in the order of dispatch.

    Raises ValueError where there are none, or for features that its op does not have."""
    base = config.family.built_features(config) if features is None else features
    found = config.family.op.features.in_dispatch_order([*base, *more_features])
    if not found:
        raise ValueError(f"{config} has no combination of features to build: expected some")
    return found


def built_resources(library: Path) -> dict[KernelConfig, dict[str, Any]]:
    """What the compiler reported for each config in a kernel library:

    - seconds: of nvcc in all; seconds_by_arch: per architecture, "host" being what they share;
    - kernels: a record per architecture and __global__ function, ascending: arch, function,
      registers (per thread), spill_store_bytes, spill_load_bytes, stack_bytes, static_smem_bytes.
      A config has a function for each combination of features, which its mangled name shows.

    Raises OSError where there is no record beside the library, ValueError for a damaged one, and
    for a library of kernels with a variant.
    """
    record = kernel_libraries.read_record(library)
    if any(_WITH in label for label in record["configs"]):
        raise ValueError(
            f"{library} is of kernels with a variant, whose registers no model predicts: expected "
            "a library of configs alone"
        )
    return {parse(short_form): values for short_form, values in record["configs"].items()}


def _link_kernels(
    library: Path,
    objects: Sequence[Compilation],
    kernels: Iterable[Compilation],
    rebuild: Sequence[str],
) -> Path:
    """Links these objects, of which those that are not compiled yet are compiled; the record is of
    `kernels`."""
    if failures := compile_all(objects, f"what links {library.stem}"):
        raise BuildError(failures, len(objects))
    folders = [f"-L{folder}" for folder in find_nvcc().library_dirs]
    runtime = [*folders, "-l:libcudart_static.a", "-lrt", "-lpthread", "-ldl"]
    exports = ROOT / "cute_kernels" / "kernel_library.map"
    options = [*runtime, f"-Wl,--version-script={exports}", "-Wl,--no-undefined"]
    record = {
        "nvcc": find_nvcc().version_text.splitlines()[-1],
        "configs": {c.label: c.record for c in kernels},
        "rebuild": list(rebuild),
    }
    # The record first: a library that is there has one.
    kernel_libraries.write_record(library, record)
    return link(library, objects, options, {"abi": abi()})


def _all_archs(archs_of: ArchsOf) -> list[Arch]:
    return sorted({arch for archs in archs_of.values() for arch in archs}, key=_sm)


def _sm(arch: Arch) -> int:
    return arch.sm

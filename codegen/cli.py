"""The command line of `pyflash build` and `python -m codegen`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyflash.codegen import config_header, emit
from pyflash.codegen.build import (
    LIB_DIR,
    build_kernels,
    build_ops,
    default_archs,
    kernel_compilations,
    legal_archs,
    that_run_on,
)
from pyflash.codegen.cache import object_problem
from pyflash.codegen.cache_dir import write_if_changed
from pyflash.config import (
    ARCHS,
    BUILT,
    SET_NAMES,
    Arch,
    Features,
    KernelConfig,
    from_environment,
    named_set,
    parse,
)


def main(argv: list[str] | None = None, prog: str = "python -m codegen") -> int:
    """Runs the command line `argv`, by default that of the process; returns the exit status.

    Prints what is wrong with configs, architectures, the toolchain or a compilation, and returns 1.
    Raises SystemExit for options that do not parse.
    """
    parser = _parser(prog)
    arguments = parser.parse_args(argv)
    if arguments.configs and (arguments.set or arguments.ops):
        parser.error("configs, --set and --ops exclude each other")
    try:
        _run(arguments)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.ops:
        build_ops(arguments.out)
        return
    archs = arguments.arch or default_archs()
    configs = _configs(arguments, archs or list(ARCHS))
    if arguments.list:
        _list(configs, archs or list(ARCHS))
    elif arguments.emit_to:
        _emit(configs, archs, arguments.emit_to)
    elif arguments.dry_run:
        _dry_run(configs, archs)
    else:
        name = arguments.name or _default_name(arguments)
        build_kernels(
            configs,
            archs,
            arguments.out,
            name,
            arguments.keep_going,
            more_features=arguments.features or (),
        )


def _configs(arguments: argparse.Namespace, archs: list[Arch]) -> list[KernelConfig]:
    if arguments.configs:
        return [parse(text) for text in arguments.configs]
    return that_run_on(named_set(arguments.set) if arguments.set else from_environment(), archs)


def _default_name(arguments: argparse.Namespace) -> str:
    if arguments.configs:
        return "custom"
    return arguments.set.replace(",", "x") if arguments.set else "default"


def _list(configs: list[KernelConfig], archs: list[Arch]) -> None:
    """One config a line, on stdout; what does not follow from the name, behind it."""
    for config in configs:
        notes = [f"{arch}: {sentence}" for arch in archs for _, sentence in config.violations(arch)]
        if config != config.canonical():
            notes.insert(0, f"built as {config.canonical()}")
        print("  # ".join([str(config), *notes]))
    print(f"{len(configs)} configs", file=sys.stderr)


def _emit(configs: list[KernelConfig], archs: list[Arch], folder: Path) -> None:
    """The translation units and the header of the config types as files; the config map only for
    named architectures."""
    texts = {
        f"{emit.file_stem(config)}.cu": emit.emit_config(config)
        for config in emit.canonical_configs(configs)
    }
    texts[str(config_header.PATH)] = config_header.emit_config_header()
    if archs:
        texts["config_map.cpp"] = emit.emit_config_map(legal_archs(configs, archs))
    n_written = sum(write_if_changed(folder / name, text) for name, text in texts.items())
    print(f"{folder}: {n_written} files written, {len(texts) - n_written} unchanged")


def _dry_run(configs: list[KernelConfig], archs: list[Arch]) -> None:
    archs_of = legal_archs(configs, archs)
    compilations = kernel_compilations(archs_of)
    n_reused = 0
    for config, compilation in compilations.items():
        reused = object_problem(compilation.object) is None
        n_reused += reused
        names = ",".join(map(str, archs_of[config]))
        print(f"{'reuse' if reused else 'compile':7}  {names}  {config}")
    print(f"{len(compilations) - n_reused} to compile, {n_reused} to reuse", file=sys.stderr)


def _feature_list(text: str) -> list[Features]:
    try:
        return [Features.parse(combination) for combination in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _arch_list(text: str) -> list[Arch]:
    try:
        return [Arch.of(name.strip()) for name in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Lists, emits and builds configs.")
    parser.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="a short form; instead of a named set"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--set",
        choices=SET_NAMES,
        help="a named set of configs (default: that of PYFLASH_KERNELS, or all)",
    )
    what.add_argument("--ops", action="store_true", help="build the op library instead of kernels")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--list", action="store_true", help="print the configs, and what speaks against"
    )
    how.add_argument("--dry-run", action="store_true", help="tell what would be compiled or reused")
    how.add_argument("--emit-to", type=Path, metavar="DIR", help="only write the C++ files there")
    parser.add_argument(
        "--arch",
        type=_arch_list,
        metavar="80,90",
        help="architectures (default: PYFLASH_ARCHS, or those of this machine's GPUs)",
    )
    parser.add_argument(
        "--features",
        type=_feature_list,
        metavar="softcap,right_window+sinks",
        help="combinations of features to build besides the default ones: "
        + ", ".join(map(str, BUILT)),
    )
    parser.add_argument("--out", type=Path, default=LIB_DIR, metavar="DIR", help="for the library")
    parser.add_argument("--name", help="of the library: libpyflash_kernels-NAME.so")
    parser.add_argument(
        "--keep-going", action="store_true", help="link what compiled even if some did not"
    )
    return parser

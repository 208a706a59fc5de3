"""The command line of `pyflash build` and `python -m codegen`, which differ in where they put
kernels."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

from pyflash.codegen import config_header, emit, ops_header
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
from pyflash.codegen.compilation import ROOT
from pyflash.config import (
    ARCHS,
    OPS,
    SET_NAMES,
    Arch,
    KernelConfig,
    KernelFeatures,
    find_features,
    from_environment,
    named_set,
    parse,
)
from pyflash.config.sets import set_of_environment


def main(argv: list[str] | None = None, prog: str = "pyflash build") -> int:
    """Runs the command line `argv`, by default that of the process; returns the exit status: 0, 130
    for Ctrl-C, 1 for what is wrong with configs, architectures, the toolchain, folders or a
    compilation, which it prints.

    Raises SystemExit for options that do not parse. As `python -m codegen` in a checkout it builds
    kernels into pyflash/lib, else into the user's cache.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser(prog)
    arguments = parser.parse_args(argv)
    if arguments.configs and (arguments.set or arguments.ops):
        parser.error("configs, --set and --ops exclude each other")
    try:
        _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what is compiled is kept in the cache", file=sys.stderr)
        return 130
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.ops:
        build_ops(arguments.out or LIB_DIR)
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
        name = arguments.name or _default_name(arguments.set, configs if arguments.configs else [])
        library = build_kernels(
            configs,
            archs,
            arguments.out,
            name,
            arguments.keep_going,
            more_features=arguments.features or (),
            rebuild=_command(arguments, name, archs),
        )
        print(library)


def _configs(arguments: argparse.Namespace, archs: list[Arch]) -> list[KernelConfig]:
    if arguments.configs:
        return [parse(text) for text in arguments.configs]
    return that_run_on(named_set(arguments.set) if arguments.set else from_environment(), archs)


def _default_name(named_set: str | None, configs: list[KernelConfig]) -> str:
    """The set's name; for configs one by what they are, so that a build leaves others alone."""
    if not configs:
        return named_set.replace(",", "x") if named_set else "default"
    first, *others = emit.canonical_configs(configs)
    if not others:
        return emit.file_stem(first)
    digest = hashlib.sha256("; ".join(map(str, [first, *others])).encode()).hexdigest()
    return f"{len(others) + 1}_configs_{digest[:8]}"


def _command(arguments: argparse.Namespace, name: str, archs: list[Arch]) -> list[str]:
    """What builds the same library wherever and whenever it is run, but for --out."""
    command = ["pyflash", "build", "--name", name, "--arch", ",".join(str(a.sm) for a in archs)]
    if arguments.features:
        command += ["--features", ",".join(map(str, arguments.features))]
    return [*command, *(arguments.configs or ["--set", arguments.set or set_of_environment()])]


def _list(configs: list[KernelConfig], archs: list[Arch]) -> None:
    """One config a line, on stdout; behind it what it takes, and what speaks against it."""
    for config in configs:
        notes = [] if config == config.canonical() else [f"built as {config.canonical()}"]
        legal = [arch for arch in archs if config.is_legal(arch)]
        if legal:
            registers = config.resources(legal[0]).registers
            ctas = ", ".join(f"{config.num_ctas_per_sm(arch)} on {arch}" for arch in legal)
            notes.append(f"{registers} registers, CTAs per SM: {ctas}")
        for sentences in (config.violations, config.warnings):
            notes += [f"{arch}: {sentence}" for arch in archs for _, sentence in sentences(arch)]
        print("  # ".join([str(config), *notes]))
    print(f"{len(configs)} configs", file=sys.stderr)


def _emit(configs: list[KernelConfig], archs: list[Arch], folder: Path) -> None:
    """The translation units and the emitted headers as files; the config map only for
    named architectures."""
    texts = {
        f"{emit.file_stem(config)}.cu": emit.emit_config(config)
        for config in emit.canonical_configs(configs)
    }
    texts[str(config_header.PATH)] = config_header.emit_config_header()
    texts |= {str(path): text for path, text in ops_header.emit_headers().items()}
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


def _feature_list(text: str) -> list[KernelFeatures]:
    try:
        return [find_features(combination) for combination in text.split(",")]
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
        + "; ".join(", ".join(map(str, op.built)) for op in OPS),
    )
    in_checkout = prog != "pyflash build" and (ROOT / "pyproject.toml").exists()
    parser.add_argument(
        "--out",
        type=Path,
        default=LIB_DIR if in_checkout else None,
        metavar="DIR",
        help=f"for the library (default: {'pyflash/lib' if in_checkout else 'the cache'}, from "
        "where every process loads it)",
    )
    parser.add_argument("--name", help="of the library: libpyflash_kernels-NAME.so")
    parser.add_argument(
        "--keep-going", action="store_true", help="link what compiled even if some did not"
    )
    return parser

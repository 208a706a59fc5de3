"""`pyflash build`, which is `python -m codegen` too: they differ in where they put kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pyflash.config import OPS, SET_NAMES
from pyflash.ui.app import (
    Command,
    JsonOption,
    check_writable,
    completed_from,
    examples,
    given_options,
    known_archs,
    known_configs,
    known_sets,
    new_app,
    print_json,
)

if TYPE_CHECKING:
    from pyflash.config import Arch, KernelConfig, KernelFeatures

app = new_app()
_T = TypeVar("_T")
_BUILT = "; ".join(", ".join(map(str, op.built)) for op in OPS)


def _features() -> list[str]:
    return [str(features) for op in OPS for features in op.built]


def _listed(read: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """A parser of values joined by commas. What `read` refuses does not parse."""

    def parse(text: str | list[_T]) -> list[_T]:
        if not isinstance(text, str):
            return text
        try:
            return [read(part.strip()) for part in text.split(",")]
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


def _arch(name: str) -> Arch:
    from pyflash.config import Arch

    return Arch.of(name)


def _combination(text: str) -> KernelFeatures:
    from pyflash.config import find_features

    return find_features(text)


def _set(name: str | None) -> str | None:
    if name is not None and name not in SET_NAMES:
        raise typer.BadParameter(f"{name!r}: expected one of {' '.join(SET_NAMES)}")
    return name


@dataclass(frozen=True)
class _Asked:
    """What is built, and for which architectures; none: this machine has no GPU."""

    configs: list[KernelConfig]
    named: list[str]  # the configs of the command line, as they are there
    set_name: str | None
    archs: list[Arch]
    features: list[KernelFeatures]  # besides those that the families build
    only: list[KernelFeatures] | None  # in place of those

    @classmethod
    def of(
        cls,
        named: list[str],
        set_name: str | None,
        archs: list[Arch] | None,
        features: list[KernelFeatures] | None,
        only: list[KernelFeatures] | None,
    ) -> _Asked:
        from pyflash.codegen.build import default_archs, that_run_on
        from pyflash.config import ARCHS, from_environment, named_set, parse

        archs = default_archs() if archs is None else archs
        if named:
            configs = [parse(text) for text in named]
        else:
            found = named_set(set_name) if set_name else from_environment()
            configs = that_run_on(found, archs or ARCHS)
        return cls(configs, named, set_name, archs, features or [], only)

    @property
    def shown_archs(self) -> Sequence[Arch]:
        """Those of a list: every known one where none is named."""
        from pyflash.config import ARCHS

        return self.archs or ARCHS

    @property
    def default_name(self) -> str:
        """The set's name; for configs one by what they are, so that a build leaves others alone."""
        from pyflash.codegen import emit

        if not self.named:
            return self.set_name.replace(",", "x") if self.set_name else "default"
        first, *others = emit.canonical_configs(self.configs)
        if not others:
            return emit.file_stem(first)
        digest = hashlib.sha256("; ".join(map(str, [first, *others])).encode()).hexdigest()
        return f"{len(others) + 1}_configs_{digest[:8]}"

    def command(self, name: str) -> list[str]:
        """What builds the same library wherever and whenever it is run, but for --out."""
        from pyflash.config.sets import set_of_environment

        archs = ",".join(str(arch.sm) for arch in self.archs)
        command = ["pyflash", "build", "--name", name, "--arch", archs]
        for option, combinations in (("--features", self.features), ("--only", self.only)):
            if combinations:
                command += [option, ",".join(map(str, combinations))]
        return [*command, *(self.named or ["--set", self.set_name or set_of_environment()])]


@app.command(
    "build",
    cls=Command,
    epilog=examples(
        'pyflash build "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles" --arch 90',
        "pyflash build --set tune --arch 80,90 --list",
        'pyflash build "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles" --only plain',
        "pyflash build --set prog --arch 90 --features right_window+softcap --dry-run",
    ),
)
def build_command(
    ctx: typer.Context,
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG",
            autocompletion=known_configs,
            help="Short forms; instead of a named set.",
        ),
    ] = None,
    set_name: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="NAME",
            callback=_set,
            autocompletion=known_sets,
            help=f"A named set of configs: {' '.join(SET_NAMES)}. That of PYFLASH_KERNELS, or all, "
            "by default.",
        ),
    ] = None,
    arch: Annotated[
        Any,
        typer.Option(
            metavar="80,90",
            parser=_listed(_arch),
            autocompletion=known_archs,
            help="Architectures; by default PYFLASH_ARCHS, or those of this machine's GPUs.",
        ),
    ] = None,
    features: Annotated[
        Any,
        typer.Option(
            metavar="softcap,right_window+sinks",
            parser=_listed(_combination),
            autocompletion=completed_from(_features),
            help=f"Combinations of features to build besides the default ones: {_BUILT}.",
        ),
    ] = None,
    only: Annotated[
        Any,
        typer.Option(
            metavar="plain,right_window",
            parser=_listed(_combination),
            autocompletion=completed_from(_features),
            help="Builds these combinations of features and no other, each in a few seconds. Calls "
            "that need another one are refused, until it is built.",
        ),
    ] = None,
    ops: Annotated[
        bool, typer.Option("--ops", help="Builds the op library instead of kernels.")
    ] = False,
    list_configs: Annotated[
        bool, typer.Option("--list", help="Lists the configs, and what speaks against each.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tells what would be compiled or reused.")
    ] = False,
    emit_to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Writes the C++ files there, and no more.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For the library; by default the cache, from where every process loads it, and "
            "pyflash/lib for `python -m codegen` and for --ops.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of libpyflash_kernels-NAME.so.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Links what compiled even if some did not.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compiles configs into a kernel library, or lists or emits them.

    What is compiled is kept in the cache: a build that is stopped goes on where it was. Prints the
    path of the library.
    """
    named = configs or []
    _check_excluded(given_options(ctx))
    try:
        if ops:
            shown, found = _build_ops(out)
        else:
            asked = _Asked.of(named, set_name, arch, features, only)
            if list_configs or dry_run:
                _print_rows(_list(asked) if list_configs else _dry_run(asked), json)
                return
            if emit_to:
                shown, found = _emit(asked, emit_to)
            else:
                shown, found = _build(asked, out, name or asked.default_name, keep_going)
    except KeyboardInterrupt:
        typer.echo("stopped; what is compiled is kept in the cache", err=True)
        raise typer.Exit(130) from None
    if json:
        print_json(found)
    else:
        typer.echo(shown)


# What is shown in a line, and the same as JSON can hold it.
_Shown = tuple[str, dict[str, Any]]


def _print_rows(rows: Iterator[_Shown], json: bool) -> None:
    """Lines as they are found, or all of them as JSON."""
    if json:
        print_json([found for _, found in rows])
        return
    for line, _ in rows:
        typer.echo(line)


# Beside each of these an option does nothing, but for those that are named with it.
_WITH = {
    "ops": {"out", "json"},
    "list_configs": {"configs", "set_name", "arch", "json"},
    "emit_to": {"configs", "set_name", "arch", "features", "only", "json"},
    "dry_run": {"configs", "set_name", "arch", "features", "only", "json"},
    "only": {"configs", "set_name", "arch", "dry_run", "emit_to", "out", "name", "keep_going",
             "json"},
    "configs": {"list_configs", "emit_to", "dry_run", "arch", "features", "only", "out", "name",
                "keep_going", "json"},
}  # fmt: skip


def _check_excluded(given: dict[str, str]) -> None:
    """Raises BadParameter for an option that would do nothing beside another one."""
    for name, others in _WITH.items():
        if name in given and (wrong := given.keys() - others - {name}):
            both = sorted((given[name], given[min(wrong)]))
            raise typer.BadParameter(f"{' and '.join(both)} exclude each other")


def _build_ops(out: Path | None) -> _Shown:
    from pyflash.codegen.build import LIB_DIR, build_ops

    folder = out or LIB_DIR
    check_writable(folder / "libpyflash_ops.so")
    library = build_ops(folder)
    return str(library), {"library": str(library)}


def _build(asked: _Asked, out: Path | None, name: str, keep_going: bool) -> _Shown:
    from pyflash.codegen.build import build_kernels
    from pyflash.codegen.kernel_libraries import library_file, record_file

    if out is not None:
        check_writable(library_file(out, name))
    library = build_kernels(
        asked.configs,
        asked.archs,
        out,
        name,
        keep_going,
        features=asked.only,
        more_features=asked.features,
        rebuild=asked.command(name),
    )
    return str(library), {"library": str(library), "record": str(record_file(library))}


def _list(asked: _Asked) -> Iterator[_Shown]:
    """Each config; behind it what it takes, and what speaks against it."""
    for config in asked.configs:
        notes = [] if config == config.canonical() else [f"built as {config.canonical()}"]
        legal = [arch for arch in asked.shown_archs if config.is_legal(arch)]
        registers = config.resources(legal[0]).registers if legal else None
        ctas = {arch.name: config.num_ctas_per_sm(arch) for arch in legal}
        if legal:
            of_each = ", ".join(f"{count} on {arch}" for arch, count in ctas.items())
            notes.append(f"{registers} registers, CTAs per SM: {of_each}")
        found: dict[str, Any] = {
            "config": str(config),
            "canonical": str(config.canonical()),
            "registers": registers,
            "num_ctas_per_sm": ctas,
        }
        for kind, ask in (("violations", config.violations), ("warnings", config.warnings)):
            told = [
                {"arch": arch.name, **v._asdict()} for arch in asked.shown_archs for v in ask(arch)
            ]
            notes += [f"{one['arch']}: {one['sentence']}" for one in told]
            found[kind] = told
        yield "  # ".join([str(config), *notes]), found
    typer.echo(f"{len(asked.configs)} configs", err=True)


def _emit(asked: _Asked, folder: Path) -> _Shown:
    """The translation units and the emitted headers as files; the config map only for
    named architectures."""
    from pyflash.codegen import config_header, emit, ops_header
    from pyflash.codegen.build import compiled_features, legal_archs
    from pyflash.codegen.cache_dir import write_if_changed

    texts = {
        f"{emit.file_stem(config)}.cu": emit.emit_config(
            config, compiled_features(config, asked.only, asked.features)
        )
        for config in emit.canonical_configs(asked.configs)
    }
    texts[str(config_header.PATH)] = config_header.emit_config_header()
    texts |= {str(path): text for path, text in ops_header.emit_headers().items()}
    if asked.archs:
        texts["config_map.cpp"] = emit.emit_config_map(legal_archs(asked.configs, asked.archs))
    written = [name for name, text in texts.items() if write_if_changed(folder / name, text)]
    unchanged = [name for name in texts if name not in written]
    line = f"{folder}: {len(written)} files written, {len(unchanged)} unchanged"
    return line, {"folder": str(folder), "written": written, "unchanged": unchanged}


def _dry_run(asked: _Asked) -> Iterator[_Shown]:
    from pyflash.codegen.build import kernel_compilations, legal_archs
    from pyflash.codegen.cache import object_problem

    archs_of = legal_archs(asked.configs, asked.archs)
    compilations = kernel_compilations(archs_of, asked.only, asked.features)
    n_reused = 0
    for config, compilation in compilations.items():
        reused = object_problem(compilation.object) is None
        n_reused += reused
        archs = [arch.name for arch in archs_of[config]]
        found = {"config": str(config), "archs": archs, "reused": reused}
        yield f"{'reuse' if reused else 'compile':7}  {','.join(archs)}  {config}", found
    typer.echo(f"{len(compilations) - n_reused} to compile, {n_reused} to reuse", err=True)

"""`pyflash build`, which is `python -m codegen` too: they differ in where they put kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pyflash.commands.built import (
    Asked,
    Shown,
    build_library,
    build_ops_library,
    emitted,
    listed,
    to_compile,
)
from pyflash.config import OPS, SET_NAMES
from pyflash.ui.app import (
    Command,
    JsonOption,
    completed_from,
    examples,
    given_options,
    known_archs,
    known_configs,
    known_sets,
    new_app,
    print_json,
)
from pyflash.ui.variants import AskedVariant, VariantOption

if TYPE_CHECKING:
    from pyflash.config import Arch, KernelFeatures

app = new_app()
_T = TypeVar("_T")
_BUILT = "; ".join(", ".join(map(str, op.built)) for op in OPS)


def _features() -> list[str]:
    return list(dict.fromkeys(str(features) for op in OPS for features in op.built))


def _values(read: Callable[[str], _T]) -> Callable[[str], list[_T]]:
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


Configs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG",
        autocompletion=known_configs,
        help="Short forms; instead of a named set.",
    ),
]
SetName = Annotated[
    str | None,
    typer.Option(
        "--set",
        metavar="NAME",
        callback=_set,
        autocompletion=known_sets,
        help=f"A named set of configs: {' '.join(SET_NAMES)}. That of PYFLASH_KERNELS, or all, "
        "by default.",
    ),
]
Archs = Annotated[
    Any,
    typer.Option(
        metavar="80,90",
        parser=_values(_arch),
        autocompletion=known_archs,
        help="Architectures; by default PYFLASH_ARCHS, or those of this machine's GPUs.",
    ),
]
MoreFeatures = Annotated[
    Any,
    typer.Option(
        metavar="softcap,right_window+sinks",
        parser=_values(_combination),
        autocompletion=completed_from(_features),
        help=f"Combinations of features to build besides the default ones: {_BUILT}.",
    ),
]
OnlyFeatures = Annotated[
    Any,
    typer.Option(
        metavar="plain,right_window",
        parser=_values(_combination),
        autocompletion=completed_from(_features),
        help="Builds these combinations of features and no other, each in a few seconds. Calls "
        "that need another one are refused, until it is built.",
    ),
]
Ops = Annotated[bool, typer.Option("--ops", help="Builds the op library instead of kernels.")]
ListConfigs = Annotated[
    bool, typer.Option("--list", help="Lists the configs, and what speaks against each.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tells what would be compiled or reused.")]
EmitTo = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Writes the C++ files there, and no more.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="For the library; by default the cache, from where every process loads it, and "
        "pyflash/lib for `python -m codegen` and for --ops.",
    ),
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="The library is libpyflash_kernels-NAME.so.")
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Links what compiled even if some did not.")
]


@app.command(
    "build",
    cls=Command,
    epilog=examples(
        'pyflash build "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles" --arch 90',
        "pyflash build --set tune --arch 80,90 --list",
        'pyflash build "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles" --only plain',
        "pyflash build --set prog --arch 90 --features right_window+softcap --dry-run",
        'pyflash build "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap" --variant alibi --arch 90',
    ),
)
def build_command(
    ctx: typer.Context,
    configs: Configs = None,
    set_name: SetName = None,
    arch: Archs = None,
    features: MoreFeatures = None,
    only: OnlyFeatures = None,
    variant: VariantOption = None,
    ops: Ops = False,
    list_configs: ListConfigs = False,
    dry_run: DryRun = False,
    emit_to: EmitTo = None,
    out: Out = None,
    name: Name = None,
    keep_going: KeepGoing = False,
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
            shown, found = build_ops_library(out)
        else:
            with_variant = AskedVariant.of(variant, None)
            asked = Asked.of(named, set_name, arch, features, only, with_variant)
            if list_configs or dry_run:
                _print_rows(listed(asked) if list_configs else to_compile(asked), json)
                return
            if emit_to:
                shown, found = emitted(asked, emit_to)
            else:
                shown, found = build_library(asked, out, name or asked.default_name, keep_going)
    except KeyboardInterrupt:
        typer.echo("stopped; what is compiled is kept in the cache", err=True)
        raise typer.Exit(130) from None
    if json:
        print_json(found)
    else:
        typer.echo(shown)


def _print_rows(rows: Iterator[Shown], json: bool) -> None:
    """Lines as they are found, or all of them as JSON."""
    if json:
        print_json([found for _, found in rows])
        return
    for line, _ in rows:
        typer.echo(line)


# Beside each of these an option does nothing, but for those that are named with it.
_WITH = {
    "ops": {"out", "json"},
    "list_configs": {"configs", "set_name", "arch", "variant", "json"},
    "emit_to": {"configs", "set_name", "arch", "features", "only", "variant", "json"},
    "dry_run": {"configs", "set_name", "arch", "features", "only", "variant", "json"},
    "only": {"configs", "set_name", "arch", "variant", "dry_run", "emit_to", "out", "name",
             "keep_going", "json"},
    "configs": {"list_configs", "emit_to", "dry_run", "arch", "features", "only", "variant", "out",
                "name", "keep_going", "json"},
    "variant": {"configs", "set_name", "arch", "features", "only", "list_configs", "dry_run",
                "emit_to", "out", "name", "json"},
}  # fmt: skip


def _check_excluded(given: dict[str, str]) -> None:
    """Raises BadParameter for an option that would do nothing beside another one."""
    for name, others in _WITH.items():
        if name in given and (wrong := given.keys() - others - {name}):
            both = sorted((given[name], given[min(wrong)]))
            raise typer.BadParameter(f"{' and '.join(both)} exclude each other")

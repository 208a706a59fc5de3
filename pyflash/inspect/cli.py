"""`pyflash inspect`, `diff`, `profile` and `registers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflash.ui.app import (
    ArchOption,
    ConfigArgument,
    HtmlOption,
    JsonOption,
    check_writable,
    chosen_arch,
    examples,
    known_configs,
    new_app,
    print_json,
    show,
    working,
    write_file,
)
from pyflash.ui.variants import AskedVariant, ValueOption, VariantOption

app = new_app()
_BUILDS = "pyflash build"


@app.command(
    "inspect",
    epilog=examples(
        'pyflash inspect "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" --arch sm_90',
        'pyflash inspect "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap" --arch sm_90 \\',
        "  --part layouts --html config.html",
    ),
)
def inspect_command(
    config: ConfigArgument,
    arch: ArchOption = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", help="layouts, traffic or compiled; may be repeated; all by default."
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURES",
            help="What the kernels compute, such as right_window+softcap; may be repeated; plain "
            "by default.",
        ),
    ] = None,
    variant: VariantOption = None,
    value: ValueOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Looks inside a config: layouts, traffic, machine code.

    Compiles what is not cached; what this machine cannot do is left out, and said. Exits with 1 if
    the config is not legal on the architecture.
    """
    from pyflash.inspect.inspection import PARTS, inspect
    from pyflash.ui.page import page

    check_writable(html)
    target, asked = chosen_arch(arch), AskedVariant.of(variant, value)
    with working(f"looking inside of {config}"):
        found = inspect(config, target, part or PARTS, features or ("plain",), asked)
    if html is not None:
        write_file(html, page(found))
    if json:
        typer.echo(found.to_json(indent=1))
    elif html is None:
        show(found)
    raise typer.Exit(1 if found.violations else 0)


@app.command(
    "profile",
    epilog=examples(
        'pyflash profile "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" --seqlen 512',
    ),
)
def profile_command(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            autocompletion=known_configs,
            help="A config's short form; it has to be built.",
        ),
    ],
    seqlen: Annotated[int, typer.Option(metavar="N", min=1, help="Queries and keys.")] = 256,
    json: JsonOption = False,
) -> None:
    """Runs a config under Nsight Compute: predicted beside measured.

    Needs a GPU and ncu. Exits with 1 where a count differs from the emulator's.
    """
    from pyflash.inspect.profile import profile

    with working(f"running {config} under Nsight Compute"):
        result = profile(config, seqlen)
    if json:
        typer.echo(result.to_json(indent=1))
    else:
        show(result)
    raise typer.Exit(1 if result.wrong else 0)


@app.command(
    "registers",
    epilog=examples(
        "pyflash registers",
        "pyflash registers libpyflash_kernels-prog.so --json",
    ),
)
def registers_command(
    library: Annotated[
        Path | None,
        typer.Argument(
            metavar="LIBRARY", help="A kernel library; by default that of the default set."
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For the docs.")] = False,
    json: JsonOption = False,
) -> None:
    """Predicted registers beside ptxas's, of a library's kernels."""
    from pyflash.codegen.kernel_libraries import record_file
    from pyflash.inspect.registers import register_table, registers_of, summary, to_markdown

    path = library or _default_library()
    if not path.is_file():
        raise ValueError(f"{path}: no such kernel library: expected the path that {_BUILDS} prints")
    if not record_file(path).is_file():
        raise ValueError(
            f"{path}: no record of what the compiler said lies beside it: {_BUILDS} "
            "writes library and record"
        )
    if json:
        print_json([r.to_dict() for r in registers_of(path)])
        return
    table = register_table(path)
    if markdown:
        typer.echo(to_markdown(table))
    else:
        show(table)
    typer.echo(summary(path))


def _default_library() -> Path:
    """Raises ValueError where it is not built, naming those that are."""
    from pyflash.codegen.build import abi
    from pyflash.codegen.kernel_libraries import LIB_DIR, find, installed, of_user

    path = find("default", abi())
    if not path.is_file():
        others = ", ".join(map(str, [*installed(LIB_DIR), *of_user(abi())]))
        if others:
            raise ValueError(
                f"the library of the default set is not built: name one of {others}, or build it: "
                f"{_BUILDS} --arch 90"
            )
        raise ValueError(f"no kernel library is built; to build one: {_BUILDS} --arch 90")
    return path


@app.command(
    "diff",
    epilog=examples(
        'pyflash diff "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" \\',
        '  "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles" --arch sm_90 --emulate',
    ),
)
def diff_command(
    first: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", autocompletion=known_configs, help="A config's short form."
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(metavar="OTHER", autocompletion=known_configs, help="Another's."),
    ],
    arch: ArchOption = None,
    features: Annotated[
        str, typer.Option(metavar="FEATURES", help="Which of their kernels.")
    ] = "plain",
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Count bank conflicts, on the emulator.")
    ] = False,
    sass: Annotated[bool, typer.Option("--sass", help="And the main loops' machine code.")] = False,
    variant: VariantOption = None,
    value: ValueOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Two configs side by side: fields, resources, instructions.

    Compiles what is not cached.
    """
    from pyflash.inspect.diff import diff
    from pyflash.ui.page import page

    check_writable(html)
    target, asked = chosen_arch(arch), AskedVariant.of(variant, value)
    with working("comparing the two configs"):
        result = diff(first, second, target, features, emulate, asked)
    if html is not None:
        write_file(html, page(result))
    if json:
        typer.echo(result.to_json(indent=1))
        return
    show(result)
    if sass:
        typer.echo(result.sass())

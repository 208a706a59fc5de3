"""`pyflash variant`: which attention is computed, as a value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.ui.app import (
    JsonOption,
    check_writable,
    examples,
    new_app,
    print_json,
    show,
    write_file,
)
from pyflash.ui.variants import ValueOption, read_variant, values_of

if TYPE_CHECKING:
    from pyflash.variant import Variant
    from pyflash.variant.library import Entry

app = new_app()
variant_app = new_app(help="Which attention is computed, as a value.")
app.add_typer(variant_app, name="variant")

VariantArgument = Annotated[
    str,
    typer.Argument(
        metavar="VARIANT",
        help="A name of `variant list`, text such as 'causal: s where k <= q', or a file of it.",
    ),
]
_MARKS = {"none": "·", "some": "▒", "all": "█"}
_MOST_TILES = 1 << 16


@variant_app.command(
    "list",
    epilog=examples(
        "pyflash variant list",
    ),
)
def list_command(json: JsonOption = False) -> None:
    """The named variants, with their formulas."""
    from pyflash.ui.tables import Table
    from pyflash.variant.library import named, names

    entries = [named(name) for name in names()]
    if json:
        print_json([_described(entry.variant, entry) for entry in entries])
        return
    rows = [(e.name, ", ".join(map(str, e.variant.params)), e.formula) for e in entries]
    show(Table.of(f"{len(rows)} variants", ("name", "parameters", "formula"), rows))


@variant_app.command(
    "show",
    epilog=examples(
        "pyflash variant show alibi",
        "pyflash variant show 'mine(w: i32): s where abs(k - q) <= w'",
    ),
)
def show_command(variant: VariantArgument, json: JsonOption = False) -> None:
    """A variant's normal form, structure, derivative and cost of a score."""
    from pyflash.ui.tables import Table

    value, entry = read_variant(variant)
    found = _described(value, entry)
    if json:
        print_json(found)
        return
    costs = [
        (rate, cost["instructions"], cost["special"], cost["kept"])
        for rate, cost in found["costs"].items()
    ]
    columns = ("computed for each", "instructions", "special functions", "values kept")
    note = (
        "Estimates. Values kept are in registers, or loaded again for each pair. Kernels of a GPU "
        "compute what reads k - q alone once for each distance, and read what is dear from tables."
    )
    pairs = {key: found[key] for key in ("text", "key", "normal", "structure", "derivative")}
    pairs |= {key: found[key] for key in ("formula", "source") if key in found}
    show(
        Table.of_pairs(value.name, pairs | {"parameters": ", ".join(map(str, value.params))}),
        Table.of("Cost", columns, costs, note),
    )


@variant_app.command(
    "check",
    epilog=examples(
        "pyflash variant check documents",
        "pyflash variant check 'causal: s where k <= q'",
    ),
)
def check_command(variant: VariantArgument, json: JsonOption = False) -> None:
    """Compares a variant with its normal form, its tiles and its reference.

    On a small problem, with random parameters for a text. Exits with 1 where something differs.
    """
    from pyflash.ui.tables import Table
    from pyflash.variant.check import check

    value, entry = read_variant(variant)
    found = check(value, entry)
    if json:
        print_json(found.to_dict())
    else:
        reference = "yes" if found.with_reference else "no: a text has none"
        pairs = {"pairs": found.pairs, "tiles": found.tiles, "with a reference": reference}
        faults = {f"fault {i}": fault for i, fault in enumerate(found.faults, 1)}
        show(Table.of_pairs(f"{value.name}: {len(found.faults)} faults", pairs | faults))
    raise typer.Exit(1 if found.faults else 0)


@variant_app.command(
    "tiles",
    epilog=examples(
        "pyflash variant tiles causal",
        "pyflash variant tiles window --seqlen-q 1024 --block-q 64 --value window=128",
    ),
)
def tiles_command(
    variant: VariantArgument,
    seqlen_q: Annotated[int, typer.Option(metavar="N", min=1, help="Queries.")] = 2048,
    seqlen_k: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keys; as queries by default.")
    ] = None,
    block_q: Annotated[int, typer.Option(metavar="N", min=1, help="Queries of a tile.")] = 128,
    block_k: Annotated[int, typer.Option(metavar="N", min=1, help="Keys of a tile.")] = 128,
    batch_index: Annotated[int, typer.Option(metavar="N", min=0, help="The sequence.")] = 0,
    head: Annotated[int, typer.Option(metavar="N", min=0, help="The head of Q.")] = 0,
    value: ValueOption = None,
    json: JsonOption = False,
) -> None:
    """Draws which tiles a mask hides, cuts and shows.

    A named variant has its example's parameters. Of a parameter without a value nothing is assumed.
    """
    from pyflash.variant.tiles import Problem, tiles

    found, entry = read_variant(variant)
    problem = Problem(seqlen_q, seqlen_k or seqlen_q, batch_index + 1, head + 1)
    count = -(-problem.q_len // block_q) * -(-problem.k_len // block_k)
    if count > _MOST_TILES:
        raise ValueError(f"{count} tiles: expected at most {_MOST_TILES}, take larger blocks")
    values = values_of(found, entry, value or [], problem)
    judged = tiles(found.mask, problem, (block_q, block_k), values, batch_index, head)
    counts = {kind: sum(row.count(kind) for row in judged) for kind in _MARKS}
    if json:
        print_json({"variant": str(found), "counts": counts, "tiles": judged})
        return
    lines = ["".join(_MARKS[kind] for kind in row) for row in judged]
    legend = ", ".join(f"{_MARKS[kind]} {kind} {n} ({n / count:.0%})" for kind, n in counts.items())
    typer.echo("\n".join([*lines, legend]))


@variant_app.command(
    "emit",
    epilog=examples(
        "pyflash variant emit softcap",
        "pyflash variant emit alibi --header alibi.h",
    ),
)
def emit_command(
    variant: VariantArgument,
    header: Annotated[Path | None, typer.Option(metavar="FILE", help="A file for the C++.")] = None,
    json: JsonOption = False,
) -> None:
    """Prints a variant as C++, or as postfix programs beside it with --json."""
    from pyflash.variant.bytecode import program_of
    from pyflash.variant.cpp import header_of

    check_writable(header)
    value, _ = read_variant(variant)
    normal, text = value.normal, header_of(value)
    if header is not None:
        write_file(header, text)
    if json:
        roots = {"score": normal.score, "mask": normal.mask}
        programs = {n: str(program_of(r, normal.params)).splitlines() for n, r in roots.items()}
        print_json({"key": value.key, "cpp": text, **programs})
    elif header is None:
        typer.echo(text)


def _described(variant: Variant, entry: Entry | None) -> dict[str, Any]:
    from pyflash.variant.axes import Rate, costs, kept
    from pyflash.variant.derivative import derivative
    from pyflash.variant.normal import simplified
    from pyflash.variant.structure import structure

    normal = variant.normal
    found, values = costs(normal.score, normal.mask), kept(normal.score, normal.mask)
    described = {
        "name": variant.name,
        "text": str(variant),
        "key": variant.key,
        "normal": str(normal),
        "structure": structure(normal.mask),
        "derivative": str(simplified(derivative(normal.score))),
        "costs": {
            rate.name.lower(): {
                "instructions": found[rate].instructions,
                "special": found[rate].special,
                "kept": values.get(rate),
            }
            for rate in Rate
        },
    }
    return described | ({"formula": entry.formula, "source": entry.source} if entry else {})

"""`pyflash cache`."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.ui.app import JsonOption, examples, new_app, print_json, show, working

if TYPE_CHECKING:
    from pyflash.codegen.cache import Entry

app = new_app()

_DAY = 86400.0
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SPANS = {"s": 1.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}


@app.command(
    "cache",
    epilog=examples(
        "pyflash cache",
        "pyflash cache --prune --older-than 30d --dry-run",
        "pyflash cache --prune --kind objects --keep 2G",
    ),
)
def cache_command(
    prune: Annotated[bool, typer.Option("--prune", help="Removes what the options name.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Prune what was not used for this long: 12h, 30d, 8w."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Prune the least recently used beyond this size: 500M, 2G.",
        ),
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="Prune what is damaged.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Prune all of it.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND", help="Only such as objects, kernels, jit, emulated; may be repeated."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tells, removes nothing.")] = False,
    entries: Annotated[bool, typer.Option("--entries", help="Every entry, not sums.")] = False,
    json: JsonOption = False,
) -> None:
    """Shows what is in the cache of compiled code, or prunes it.

    Nothing in it is lost for good: what a build needs is compiled again. Half-written leftovers are
    always pruned. Without --prune, exits with 1 where an entry is damaged.
    """
    from pyflash.codegen import cache

    if not prune:
        if older_than or keep or bad or everything or dry_run:
            raise ValueError("--older-than, --keep, --bad, --all and --dry-run go with --prune")
        if unknown := set(kind or ()) - set(cache.KINDS):
            known = ", ".join(cache.KINDS)
            raise ValueError(f"unknown kinds {sorted(unknown)}: expected some of {known}")
        with working("reading every entry, to tell what is damaged"):
            found = [entry for entry in cache.entries() if entry.kind in (kind or cache.KINDS)]
        title = str(cache.cache_dir())
    else:
        if everything and (older_than or keep or bad):
            raise ValueError("--all excludes --older-than, --keep and --bad")
        found = cache.prune(
            older_than=_seconds(older_than) if older_than else None,
            kinds=kind or None,
            keep_bytes=_bytes(keep) if keep else None,
            bad=bad,
            everything=everything,
            dry_run=dry_run,
        )
        title = f"{'would be removed' if dry_run else 'removed'} from {cache.cache_dir()}"
    if json:
        print_json({"folder": str(cache.cache_dir()), "entries": list(map(_entry_dict, found))})
    else:
        _show(title, found, entries)
    raise typer.Exit(1 if not prune and any(entry.problem for entry in found) else 0)


def _show(title: str, found: Sequence[Entry], entries: bool) -> None:
    from pyflash.ui.tables import Table

    of_kind: dict[str, list[Entry]] = {}
    for entry in found:
        of_kind.setdefault(entry.kind, []).append(entry)
    rows = [
        (kind, len(group), size(sum(e.bytes for e in group)), _age(min(e.used for e in group)))
        for kind, group in of_kind.items()
    ]
    rows.append(("all", len(found), size(sum(entry.bytes for entry in found)), None))
    tables = [Table.of(title, ("", "entries", "size", "longest unused"), rows)]
    if entries:
        each = [(e.kind, e.name, size(e.bytes), _age(e.used), e.problem) for e in found]
        tables.append(Table.of("entries", ("", "name", "size", "unused", "problem"), each))
    elif problems := [(e.kind, e.name, e.problem) for e in found if e.problem]:
        note = "`pyflash cache --prune --bad` removes them"
        tables.append(Table.of("damaged", ("", "name", "problem"), problems, note))
    show(*tables)


def _entry_dict(entry: Entry) -> dict[str, Any]:
    return dataclasses.asdict(entry) | {"path": str(entry.path)}


def size(n_bytes: float) -> str:
    """In binary units, such as 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.3g} {unit}" if unit != "bytes" else f"{n_bytes:.0f} bytes"
        n_bytes /= 1024
    return f"{n_bytes:.3g} GiB"


def _age(used: float) -> str:
    seconds = max(0.0, time.time() - used)
    return f"{seconds / _DAY:.0f} days" if seconds >= 2 * _DAY else f"{seconds / 3600:.0f} hours"


def _seconds(text: str) -> float:
    """The seconds in 30d; h, d, w and s. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+)([shdw])", text)
    if not match:
        raise ValueError(f"--older-than {text}: expected a number of h, d or w, such as 30d")
    return int(match[1]) * _SPANS[match[2]]


def _bytes(text: str) -> int:
    """The bytes in 2G; binary units. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    if not match:
        raise ValueError(f"--keep {text}: expected a size such as 500M or 2G")
    return int(match[1]) * _UNITS[match[2]]

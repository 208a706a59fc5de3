"""Tuned tables: what selection knows of GPUs, as JSON files.

The package has a table for each GPU that it was tuned on (pyflash/data/tuned); those that a user
installs, `pyflash tune --install`, are in `user_dir()` and come before. What a table may say, and
when it decides, is in cute_kernels/host/tuned.h and select.h.
"""

from __future__ import annotations

import json
import os
import stat
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyflash.config import DType, Features

SHIPPED_DIR = Path(__file__).resolve().parents[1] / "data" / "tuned"
FORMAT = 1
KINDS = ("many", "few")
# Of a config, as host/expected_time.h says.
COSTS = (
    "launch", "tile", "step", "share", "rows", "mask", "capped", "memory", "l2", "cold", "merge",
    "split",
)  # fmt: skip

Table = dict[str, Any]


def user_dir() -> Path:
    """Where a user's own tables are: PYFLASH_CONFIG_DIR, or pyflash in XDG_CONFIG_HOME, by default
    ~/.config/pyflash; there in tuned/."""
    own = os.environ.get("PYFLASH_CONFIG_DIR")
    xdg = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(own) if own else (Path(xdg) if xdg else Path.home() / ".config") / "pyflash"
    return folder.expanduser().resolve() / "tuned"


def load_tables() -> int:
    """Makes selection use the tables of the user and of the package; returns the number of their
    rows. A file that cannot be used is skipped with a warning."""
    tables = [*_read_folder(user_dir(), own=True), *_read_folder(SHIPPED_DIR)]
    return use_tables(tables)


def use_tables(tables: Iterable[Table]) -> int:
    """Makes selection use these, in the order of precedence, and no others; returns the number of
    their rows. Raises ValueError for one that is no table, and then changes nothing."""
    # NOTE: not above: importing torch imports library.py, which imports this module.
    import torch

    lines = [line for table in tables for line in _lines(table)]
    return torch.ops.pyflash.load_tables("".join(f"{line}\n" for line in lines))


def read_table(path: Path) -> Table:
    """Raises ValueError for a file that is no table, OSError for one that cannot be read."""
    try:
        table = json.loads(path.read_text())
        _lines(table)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no tuned table: {error!r}") from None
    return table


def write_table(path: Path, table: Table) -> None:
    """Writes it at once, for its owner alone where the folder is made here."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    partial.write_text(json.dumps(table, indent=1) + "\n")
    partial.replace(path)


def class_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two rows of `choices` be for the same class."""
    return tuple(json.dumps(values[name]) for name in _CLASS)


_CLASS = ("dtype", "d_head", "features", "packed", "pairs", "rows", "keys")


def _read_folder(folder: Path, own: bool = False) -> list[Table]:
    tables = []
    for path in sorted(folder.glob("*.json")):
        try:
            if own:
                _check_private(path)
            tables.append(read_table(path))
        except (ValueError, OSError) as error:
            warnings.warn(f"pyflash: {path} is skipped: {error}", stacklevel=2)
    return tables


def _check_private(path: Path) -> None:
    """Nobody else is to decide which kernels a user runs."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"others can write to it: expected a file of user {os.getuid()}; chmod go-w '{path}'"
        )


def _lines(table: Table) -> list[str]:
    """As host/tuned.h has them."""
    if table["format"] != FORMAT:
        raise ValueError(f"format {table['format']}: expected {FORMAT}; make it again")
    lines = [f"table {int(table['sm'])} {int(table['n_sms'])} | {_word(table['name'])}"]
    for row in table.get("choices", ()):
        of = row["class"]
        ranges = (f"{int(first)} {int(last)}" for first, last in map(of.get, _CLASS[4:]))
        features = Features.parse(of["features"])
        head = f"{int(DType.of(of['dtype']))} {int(of['d_head'])} {features} {int(of['packed'])}"
        splits = int(row["num_splits"])
        lines.append(f"choice {head} {' '.join(ranges)} {splits} | {_word(row['config'])}")
    for row in table.get("costs", ()):
        if row["kind"] not in KINDS:
            raise ValueError(f"unknown kind {row['kind']!r}: expected one of {', '.join(KINDS)}")
        figures = " ".join(f"{float(row[name]):.6g}" for name in COSTS)
        lines.append(f"costs {row['kind']} {figures} | {_word(row['config'])}")
    return lines


def _word(text: str) -> str:
    if "\n" in text or " | " in text:
        raise ValueError(f"{text!r}: expected a name without a line break or a bar")
    return text

"""Tuned tables: what selection knows of GPUs, as JSON files.

The package has a table for each GPU that it was tuned on (pyflash/data/tuned); those that a user
installs, `pyflash tune --install`, are in `user_dir()` and come before. What a table may say, and
when it decides, is in cute_kernels/host/tuned.h and select.h.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyflash.codegen import trust
from pyflash.codegen.cache_dir import write_text
from pyflash.config import DType, Features
from pyflash.op.json_value import JsonValue

SHIPPED_DIR = Path(__file__).resolve().parents[1] / "data" / "tuned"
FORMAT = 1
KINDS = ("many", "few")
MAX_SPLITS = 128  # kMaxSplits in cute_kernels/params.h
# The costs of a config, as host/expected_time.h has them.
COSTS = (
    "launch", "tile", "step", "share", "rows", "mask", "capped", "megabyte", "merge", "split",
    "partial",
)  # fmt: skip

Table = dict[str, Any]


# The limit of a file; the largest shipped one takes a hundredth.
_MOST_BYTES = 10 << 20
_INT, _LONG = 2**31 - 1, 2**63 - 1
_MOST = 1e9  # microseconds, or any other cost


class NoTablesError(ValueError):
    """No folder for a user's tables: no home folder, and no variable names one."""


def user_dir() -> Path:
    """Where a user's own tables are: PYFLASH_CONFIG_DIR, or pyflash in XDG_CONFIG_HOME, by default
    ~/.config/pyflash; there in tuned/. Raises NoTablesError without a home folder, ValueError for a
    variable that leads nowhere."""
    for variable, below in (("PYFLASH_CONFIG_DIR", "tuned"), ("XDG_CONFIG_HOME", "pyflash/tuned")):
        if folder := os.environ.get(variable):
            try:
                return trust.expand(folder) / below
            except ValueError as error:
                raise ValueError(f"{variable}={error}; set it to a folder") from None
    try:
        return trust.expand("~/.config/pyflash/tuned")
    except ValueError as error:
        raise NoTablesError(f"no folder: {error}; set PYFLASH_CONFIG_DIR to one") from None


def load_tables() -> int:
    """Makes selection use the tables of the user and of the package; returns the number of their
    rows. Whatever is wrong with a file, it is skipped with a warning."""
    found = {path: table for path in _files() if (table := _read_or_tell(path)) is not None}
    try:
        return use_tables(found.values())
    except (RuntimeError, ValueError):  # of one of them: which, each alone tells
        usable = [table for path, table in found.items() if _is_usable(path, table)]
        return use_tables(usable)


def use_tables(tables: Iterable[Table]) -> int:
    """Makes selection use these, in the order of precedence, and no others; returns the number of
    their rows. Raises ValueError for one that is no table, and then changes nothing."""
    # NOTE: not above: importing torch imports library.py, which imports this module.
    import torch

    lines = [line for table in tables for line in _lines(table)]
    return torch.ops.pyflash.load_tables("".join(f"{line}\n" for line in lines))


def read_table(path: Path, is_own: bool = False) -> Table:
    """Raises ValueError for a file that is no table, OSError for one that cannot be read; of a
    user's own also UntrustedError for one that others can write."""
    with trust.open_file(path) as file:
        if is_own:
            trust.check(os.fstat(file.fileno()), path)
        text = file.read(_MOST_BYTES + 1)
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        table = json.loads(text)
        _lines(table)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no tuned table: {error}; make it again") from None
    return table


def write_table(path: Path, table: Table, is_private: bool = True) -> None:
    """Writes it at once; `is_private`: for its owner alone, as the folders that are made for it."""
    if is_private:
        trust.make_private(path.parent)
    members = (f" {json.dumps(name)}: {_in_lines(value)}" for name, value in table.items())
    write_text(path, "{\n" + ",\n".join(members) + "\n}\n", is_private)


def _in_lines(value: Any) -> str:
    """JSON with a line for each row of a list and each member of an object."""
    if isinstance(value, dict):
        rows, ends = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()], "{}"
    elif isinstance(value, list):
        rows, ends = [json.dumps(row) for row in value], "[]"
    else:
        return json.dumps(value)
    return f"{ends[0]}\n  " + ",\n  ".join(rows) + f"\n {ends[1]}" if rows else ends


def class_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a row of `choices`: two rows with the same key are for the same class."""
    return tuple(json.dumps(values[name]) for name in _CLASS)


_CLASS = ("dtype", "d_head", "features", "packed", "pairs", "rows", "keys")


def _files() -> Iterator[Path]:
    """The files of tables, in the order of precedence."""
    try:
        own = user_dir()
        yield from (own / name for name in sorted(os.listdir(own)) if name.endswith(".json"))
    except (NoTablesError, FileNotFoundError, NotADirectoryError):
        pass  # as most users have none
    except (ValueError, OSError) as error:
        _tell(f"tuned tables of the user are skipped: {error}")
    yield from sorted(SHIPPED_DIR.glob("*.json"))


def _read_or_tell(path: Path) -> Table | None:
    try:
        return read_table(path, is_own=path.parent != SHIPPED_DIR)
    except OSError as error:
        _tell(f"{path} is skipped: it cannot be read: {error.strerror}; remove it, or mend that")
    except (ValueError, trust.UntrustedError) as error:
        _tell(f"{path} is skipped: it {str(error).removeprefix(str(path)).strip()}")
    return None


def _is_usable(path: Path, table: Table) -> bool:
    """Whether the op takes it."""
    try:
        use_tables([table])
    except (RuntimeError, ValueError) as error:
        _tell(f"{path} is skipped: {error}; make it again")
        return False
    return True


def _tell(sentence: str) -> None:
    warnings.warn(f"pyflash: {sentence}", stacklevel=2)


def _lines(table: Table) -> list[str]:
    """As host/tuned.h has them. Raises ValueError for what no table says, with the path to it."""
    root = JsonValue(table)
    root["format"].whole(FORMAT, FORMAT)
    gpu = f"{root['sm'].whole(10, 999)} {root['n_sms'].whole(1, 1 << 16)}"
    lines = [f"table {gpu} | {_word(root['name'])}"]
    for row in root.get("choices", []).items():
        of = row["class"]
        head = f"{int(DType[of['dtype'].one_of(DType.__members__)])} {of['d_head'].whole(1, _INT)}"
        head += f" {_features(of['features'])} {int(of['packed'].flag())}"
        ranges = " ".join(_range(of[name]) for name in _CLASS[4:])
        splits = row["num_splits"].whole(0, MAX_SPLITS)
        lines.append(f"choice {head} {ranges} {splits} | {_word(row['config'])}")
    for row in root.get("costs", []).items():
        kind = row["kind"].one_of(KINDS)
        figures = " ".join(_figure(row[name]) for name in COSTS)
        lines.append(f"costs {kind} {figures} | {_word(row['config'])}")
    return lines


def _word(value: JsonValue) -> str:
    text = value.word()
    if " | " in text:
        value.refuse("a name without a bar")
    return text


def _features(value: JsonValue) -> Features:
    try:
        return Features.parse(value.word())
    except ValueError:
        value.refuse("plain, or names of features joined by +")


def _range(value: JsonValue) -> str:
    """A range of extents, as the line of the C++ reader has it."""
    ends = [end.whole(0, _LONG) for end in value.items()]
    if len(ends) != 2 or ends[0] > ends[1]:
        value.refuse("the first and the last of a range")
    return f"{ends[0]} {ends[1]}"


def _figure(value: JsonValue) -> str:
    # NOTE: without exponents: C++ refuses to read a number too small to be normal.
    return f"{value.number(0.0, _MOST):.9f}"

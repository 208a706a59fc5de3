"""Tables that are of no use: each is skipped with a warning that names it, and others are read."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.costs import FIGURES
from support.headers import ROOT
from support.other_user import NOBODY, as_user, needs_root

from pyflash.op import tables

CONFIG = "(FP16, 512, 64, 64, 4): async+load_0_0_0_tiles"
CLASS = {
    "dtype": "FP16", "d_head": 512, "features": "plain", "packed": False, "pairs": [100, 200],
    "rows": [65, 256], "keys": [1, 256],
}  # fmt: skip
GOOD = {
    "format": tables.FORMAT, "name": "a table", "gpu": "a GPU", "sm": 90, "n_sms": 132,
    "made": {"journals": ["a"]},
    "choices": [{"class": CLASS, "config": CONFIG, "num_splits": 0}],
    "costs": [FIGURES | {"config": CONFIG, "kind": "many"}],
}  # fmt: skip

# As JSON has them: Python's reader takes NaN, and numbers of any size.
BAD_VALUES = {
    "minus one": "-1",
    "minus five": "-5",
    "nan": "NaN",
    "inf": "Infinity",
    "minus inf": "-Infinity",
    "beyond floats": "1e400",
    "largest float": "1e308",
    "smallest float": "5e-324",
    "65 bits": "18446744073709551616",
    "400 digits": "1" + "0" * 400,
    "half": "0.5",
    "true": "true",
    "null": "null",
    "word": '"x"',
    "no word": '""',
    "surrogate": '"\\ud800"',
    "two lines": '"a\\nb"',
    "nul": '"a\\u0000b"',
    "bar": '"a | b"',
    "long word": '"' + "x" * 10_000 + '"',
    "list": "[]",
    "object": "{}",
    "reversed": "[5, 2]",
    "three": "[1, 2, 3]",
    "deep": "[" * 200 + "]" * 200,
    "too deep": "[" * 100_000 + "]" * 100_000,
}
FREE = ("gpu", "made")  # what selection does not read
FIGURE = re.compile(rf"costs\[0\]\.({'|'.join(tables.COSTS)})$")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a JSON value, without its own."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in items:
        yield (*at, key)
        if isinstance(below, dict | list):
            yield from places(below, (*at, key))


def words(place: tuple[Any, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)[1:]


def changed(place: tuple[Any, ...], text: str | None) -> str:
    """The good table as JSON with `text` in a place; None: without it."""
    table = copy.deepcopy(GOOD)
    *above, last = place
    parent: Any = table
    for key in above:
        parent = parent[key]
    if text is None:
        del parent[last]
        return json.dumps(table)
    parent[last] = "@"
    return json.dumps(table).replace('"@"', text)


def is_good(place: tuple[Any, ...], kind: str) -> bool:
    """Whether a table may say so."""
    name = words(place)
    if kind == "too deep":
        return False
    if name.startswith(FREE):
        return True
    if kind == "missing":
        return name in ("choices", "costs")
    if name in ("choices", "costs"):
        return kind == "list"
    if name == "choices[0].class.packed":
        return kind == "true"
    if name == "name" or name.endswith(".config"):
        return kind == "word"
    if FIGURE.match(name):
        return kind in ("half", "smallest float")
    return False


IMPORT = """if True:
    import json, sys, warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import pyflash, torch
        from pyflash.op import tables
    assert "torch" in sys.modules and torch.ops.pyflash.fwd
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(json.dumps([tables.load_tables(), [str(w.message) for w in caught]]))
"""


def imported(folder: Path) -> list[Any]:
    """In another process that imports pyflash and then torch: the number of rows that are used of
    all tables, and the warnings."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORT],
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "PYFLASH_CONFIG_DIR": str(folder),
            "PYFLASH_CACHE_DIR": str(folder / "cache"),
        },
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@pytest.fixture
def load(tmp_path, monkeypatch) -> Iterator[Callable[[], tuple[int, list[str]]]]:
    """What `imported` says of the folder of this test, in this process."""
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(tmp_path))

    def load() -> tuple[int, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            n_rows = tables.load_tables()
        return n_rows, [str(warning.message) for warning in caught]

    yield load
    monkeypatch.undo()
    tables.load_tables()


@pytest.fixture(scope="module")
def n_shipped() -> int:
    return len(_rows(tables.SHIPPED_DIR))


def test_an_import_reads_what_is_shipped(tmp_path, n_shipped):
    assert imported(tmp_path) == [n_shipped, []]


def test_a_change_at_any_place_of_a_table_is_read_or_told(tmp_path, n_shipped):
    """Pitfall 30: one bad file of the user breaks the import."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    tables_of: dict[str, tuple[tuple[Any, ...], str]] = {}
    for place in places(GOOD):
        for kind, text in {**BAD_VALUES, "missing": None}.items():
            if kind == "missing" and isinstance(place[-1], int):
                continue
            name = f"{len(tables_of):04}.json"
            tables_of[name] = place, kind
            (folder / name).write_text(changed(place, text))
    assert len(tables_of) > 900
    for name in ("aaa.json", "zzz.json"):
        (folder / name).write_text(json.dumps(GOOD))
    n_rows, warned = imported(tmp_path)
    told = {}
    for text in warned:
        assert "\n" not in text
        assert len(text) < 700
        (name,) = re.findall(rf"^pyflash: {re.escape(str(folder))}/(\w+\.json) is skipped: ", text)
        told[name] = text
    assert len(told) == len(warned)
    outcomes = {(words(p), k): name not in told for name, (p, k) in tables_of.items()}
    expected = {(words(p), k): is_good(p, k) for p, k in tables_of.values()}
    wrong = {what: outcomes[what] for what in expected if outcomes[what] != expected[what]}
    assert wrong == {}
    for name, text in told.items():
        place, kind = tables_of[name]
        if kind != "too deep":
            assert f": {words(place)}" in text, text
    n_files = 2 + sum(expected.values())
    fewer = sum(
        expected[what] and what[1] in ("list", "missing") and what[0] in ("choices", "costs")
        for what in expected
    )
    unknown = sum(e and w[0].endswith(".config") for w, e in expected.items())
    assert n_rows == n_shipped + 2 * n_files - fewer - unknown


FILES = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"1",
    "of a list of objects": b"[{}]",
    "no text": b"\xff\xfe\xff",
    "too large": b" " * (20 << 20),
    "of too many digits": b"1" * 10_000,
    "of zeros": b"\0" * 1000,
}


def make_socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


SPECIAL: dict[str, Callable[[Path], object]] = {
    **{name: lambda path, data=data: path.write_bytes(data) for name, data in FILES.items()},
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": make_socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "of others": lambda path: (path.write_text(json.dumps(GOOD)), path.chmod(0o666)),
}


def test_what_is_no_file_of_a_table_is_told(tmp_path, n_shipped):
    folder = tmp_path / "tuned"
    folder.mkdir()
    for kind, make in SPECIAL.items():
        make(folder / f"{kind.replace(' ', '_')}.json")
    real = tmp_path / "good"  # kept elsewhere
    real.write_text(json.dumps(GOOD))
    (folder / "good.json").symlink_to(real)
    start = time.monotonic()
    n_rows, warned = imported(tmp_path)  # where a read without end runs into a timeout
    assert time.monotonic() - start < 60
    for kind in SPECIAL:
        path = folder / f"{kind.replace(' ', '_')}.json"
        (text,) = (t for t in warned if t.startswith(f"pyflash: {path} is skipped: "))
        assert "\n" not in text
        assert len(text) < 700
    assert len(warned) == len(SPECIAL)
    assert n_rows == n_shipped + 2


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_folder_of_tables_is_passed_over(tmp_path, load, n_shipped, make):
    make(tmp_path / "tuned")
    n_rows, warned = load()
    assert n_rows == n_shipped
    assert all(str(tmp_path / "tuned") in text for text in warned)


def test_what_only_the_op_refuses_is_told_by_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(tmp_path))
    for name in "abc":
        tables.write_table(tables.user_dir() / f"{name}.json", GOOD | {"name": name})
    n_rows = tables.load_tables()
    real = tables._lines
    monkeypatch.setattr(tables, "_lines", lambda t: ["nonsense"] if t["name"] == "b" else real(t))
    told = rf"^pyflash: {tmp_path}/tuned/b\.json is skipped: .*'nonsense' is not understood"
    with pytest.warns(UserWarning, match=told) as caught:
        assert tables.load_tables() == n_rows - 2
    assert len(caught) == 1
    monkeypatch.undo()
    tables.load_tables()


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_a_table_that_was_written_is_read(tmp_path, monkeypatch, use_umask, umask):
    """It was skipped, as one that others can write, where the umask lets them."""
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(tmp_path / "home" / ".config" / "pyflash"))
    use_umask(umask)
    tables.write_table(tables.user_dir() / "x.json", GOOD)
    written = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    assert written == []
    assert tables.load_tables() == 2 + len(_rows(tables.SHIPPED_DIR))
    monkeypatch.undo()
    tables.load_tables()


def _rows(folder: Path) -> list[Any]:
    read = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return [row for table in read for row in (*table["choices"], *table["costs"])]


@needs_root
@pytest.mark.parametrize(
    ("owner", "reader", "loads"),
    [(0, NOBODY, True), (NOBODY, NOBODY, True), (NOBODY, 0, False), (NOBODY - 1, NOBODY, False)],
)
def test_a_table_of_its_user_or_of_root_is_read(open_folder, monkeypatch, owner, reader, loads):
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(open_folder))
    path = open_folder / "tuned" / "x.json"
    path.parent.mkdir()
    path.write_text(json.dumps(GOOD))
    os.chown(path, owner, -1)
    n_rows = 2 * loads + len(_rows(tables.SHIPPED_DIR))
    assert as_user(reader, tables.load_tables) == str(n_rows)

"""Each room imports only those that CONTRIBUTING's table says it knows, and no imports go round."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.imports import TOPS, import_graph, module_name

ROOT = Path(__file__).parents[2]
GRAPH = import_graph(ROOT)


def circle_in(graph) -> list[str]:
    """The modules of a circle, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def rooms_of(contributing: str) -> dict[str, set[str]]:
    """By the rooms of Python, those that each knows, as the table has it, from the top down."""
    table = contributing.split("## Repository layout")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    levels = []
    for names, _, knows in (row for row in rows if len(row) == 3):
        paths = [Path(name) for name in re.findall("`([^`]+)`", names)]
        if rooms := [module_name(path) for path in paths if path.parts[0] in TOPS]:
            levels.append((rooms, knows))
    found = {}
    for i, (rooms, knows) in enumerate(levels):
        below = {room for others, _ in levels[i + 1 :] for room in others}
        named = {room for room in below if f"`{room.rpartition('.')[2]}`" in knows}
        for room in rooms:
            assert room not in found, f"{room} is in two rows"
            found[room] = below if knows == "all below" else named
    return found


ROOMS = rooms_of((ROOT / "CONTRIBUTING.md").read_text())


def room_of(module: str) -> str:
    """A module with a row of its own, or its folder's. `pyflash` is its __init__.py alone."""
    if module in ROOMS:
        return module
    top, *rest = module.split(".")
    return f"pyflash.{rest[0]}" if top == "pyflash" and rest else top


def unknown_to(graph, rooms) -> list[str]:
    """The imports of what a room does not know."""
    return [
        f"{place}: {room_of(module)} imports {target}"
        for module, targets in graph.items()
        for target, place in targets.items()
        if room_of(target) not in {room_of(module), *rooms[room_of(module)]}
    ]


def test_no_imports_go_round():
    assert circle_in(GRAPH) == []


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in GRAPH} == set(ROOMS)


def test_rooms_import_what_they_know():
    assert unknown_to(GRAPH, ROOMS) == []


@pytest.mark.parametrize(
    ("room", "imported"),
    [(a, b) for a in ROOMS for b in ROOMS if a != b and b not in ROOMS[a]],
)
def test_an_import_of_an_unknown_room_is_found(room, imported):
    wrong = {room: {imported: "here:1"}}
    assert unknown_to(wrong, ROOMS) == [f"here:1: {room} imports {imported}"]


LAZY = "def f():\n    from pyflash import a\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyflash import a\n"
NOT_TYPES = "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import pyflash.a\n"


@pytest.mark.parametrize(
    ("text", "goes_round"),
    [
        ("from pyflash import a", True),
        ("from pyflash.a import name", True),
        ("import pyflash.a", True),
        ("from importlib import import_module\nimport_module('pyflash.a')", True),
        (LAZY, True),
        (TYPES, False),
        (TYPES + "else:\n    from pyflash import a\n", True),
        (NOT_TYPES, True),
        ("from pyflash.b import name", False),
        ("import os", False),
    ],
)
def test_a_planted_circle_is_found(tmp_path, text, goes_round):
    (tmp_path / "pyflash").mkdir()
    for name in ("__init__", "b"):
        (tmp_path / "pyflash" / f"{name}.py").touch()
    (tmp_path / "pyflash" / "a.py").write_text("from pyflash.c import name")
    (tmp_path / "pyflash" / "c.py").write_text(text)
    circle = circle_in(import_graph(tmp_path))
    assert bool(circle) is goes_round
    assert set(circle) == ({"pyflash.a", "pyflash.c"} if goes_round else set())


def test_what_is_inside_of_an_installation_is_known_by_both_names(tmp_path):
    for folder in TOPS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "codegen" / "a.py").write_text("from pyflash.third_party import cuda")
    (tmp_path / "third_party" / "cuda.py").write_text("import pyflash.codegen.a")
    circle = circle_in(import_graph(tmp_path))
    assert set(circle) == {"codegen.a", "third_party.cuda"}

"""A family is a folder in pyflash/config and one line: in a copy of the repository that has both,
every tool that needs no compiler and no GPU takes it, with no edit elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.bench_records import record
from support.toy_family import TOY, TOY_FAMILY

ROOT = Path(__file__).parents[2]
FAMILIES = "_in_order(SM80_FORWARD, SM90_FORWARD)"
FIRST_IMPORT = "from pyflash.config.words"
NAME = TOY_FAMILY.name

# Each is run in one process that imports the copy; the last word of a command is its output's form.
DRIVER = """
import json, sys
from typer.testing import CliRunner
import pyflash
from pyflash.cli import app
from pyflash.codegen.config_header import emit_config_header
from pyflash.config import Arch, Space, parse
from pyflash.tuner.problems import parse_problem
from pyflash.tuner.spaces import default_space

found = {}
for name, arguments in json.load(open(sys.argv[1])).items():
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found[name] = [result.exit_code, result.output]
config = parse(sys.argv[2])
problem = parse_problem("bf16,heads=8,heads_kv=2,seqlen=64,d_head=128")
found["python"] = {
    "folder": pyflash.__path__[0],
    "header": emit_config_header(),
    "config": config._repr_html_(),
    "space": Space(family=config.family.name)._repr_html_(),
    "searched": [str(space.family) for space in default_space([problem], Arch.of(90))],
}
json.dump(found, open(sys.argv[3], "w"))
"""


def commands(folder: Path) -> dict[str, list[str]]:
    config = str(TOY)
    emitted = ["build", config, "--arch", "90", "--emit-to", str(folder / "emitted")]
    listed = ["build", "--set", "toys", "--arch", "90", "--list"]
    inspect = ["inspect", config, "--arch", "sm_90", "--part", "traffic"]
    bench = ["bench", config, "--read", str(folder / "records.jsonl")]
    found = {
        "config": ["config", config],
        "config json": ["config", config, "--json"],
        "config html": ["config", config, "--html", str(folder / "config.html")],
        "space": ["space", NAME, "d_head=64"],
        "space json": ["space", NAME, "d_head=64", "--json"],
        "space list": ["space", NAME, "d_head=64", "--list"],
        "space help": ["space", "--help"],
        "unknown space": ["space", "sm70_forward"],
        "unknown config": ["config", config.replace("toy+", "sm70+")],
        "emit": emitted,
        "list": listed,
        "inspect": inspect,
        "inspect json": [*inspect, "--json"],
        "inspect html": [*inspect, "--html", str(folder / "inspect.html")],
        "emulate": ["emulate", config],
    }
    for form in ("table", "json", "csv", "markdown", "cutlass"):
        found[f"bench {form}"] = [*bench, "--format", form]
    return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the repository with the family in its folder, and its one line."""
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("lib", "__pycache__")
    for name in ("pyflash", "codegen", "third_party"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    (root / "cute_kernels").symlink_to(ROOT / "cute_kernels")
    (root / "pyflash" / "lib").symlink_to(ROOT / "pyflash" / "lib")
    folder = root / "pyflash" / "config" / NAME
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "support" / "toy_family.py", folder / "__init__.py")
    path = root / "pyflash" / "config" / "family.py"
    text = path.read_text()
    assert text.count(FAMILIES) == text.count(FIRST_IMPORT) == 1
    text = text.replace(FAMILIES, FAMILIES.replace(")", ", TOY_FAMILY)"))
    imported = f"from pyflash.config.{NAME} import TOY_FAMILY\n"
    path.write_text(text.replace(FIRST_IMPORT, imported + FIRST_IMPORT))
    return root


@pytest.fixture(scope="module")
def found(tree) -> dict:
    (tree / "commands.json").write_text(json.dumps(commands(tree)))
    measured = record() | {"config": TOY.to_dict(), "short_form": str(TOY)}
    lines = (json.dumps(one) + "\n" for one in (record("PyTorch flash"), measured))
    (tree / "records.jsonl").write_text("".join(lines))
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, "commands.json", str(TOY), "found.json"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYFLASH_CACHE_DIR": str(tree / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads((tree / "found.json").read_text())
    assert found["python"]["folder"] == str(tree / "pyflash")
    return found


SAYS = {
    "config": ["family toy_forward", "toy kernels run on sm_90 alone", "multicast"],
    "config json": ['"family": "toy_forward"', '"swizzled": true'],
    "config html": [],
    "space": ["configs of toy_forward"],
    "space json": ['"family": "toy_forward"'],
    "space list": ["(BF16, 64, 64, 64): toy+swizzled+load_0_2_tiles"],
    "space help": ["sm80_forward (default) or sm90_forward or toy_forward"],
    "emit": [],
    "list": [str(TOY), str(TOY.replace(stages=2))],
    "inspect": [f"{TOY} on sm_90", "no traffic: the emulator does not run the family toy_forward"],
    "inspect json": ['"family": "toy_forward"', '"demand": {}'],
    "inspect html": [],
    "bench table": [str(TOY), "400"],
    "bench json": [str(TOY), '"family": "toy"'],
    "bench csv": [str(TOY)],
    "bench markdown": ["128 full", "400"],
    "bench cutlass": [str(TOY), "attention"],
}
REFUSES = {
    "unknown space": "known ones are sm80_forward, sm90_forward, toy_forward",
    "unknown config": "unknown word 'sm70'",
    "emulate": "the emulator does not run the family toy_forward",
}


def test_every_command_is_judged():
    assert set(commands(Path())) == {*SAYS, *REFUSES}


@pytest.mark.parametrize("name", SAYS)
def test_a_tool_takes_the_family(found, name):
    status, output = found[name]
    assert status == 0, output
    for words in SAYS[name]:
        assert words in output


@pytest.mark.parametrize("name", REFUSES)
def test_what_cannot_be_is_refused_in_a_line(found, name):
    status, output = found[name]
    assert status == 1
    assert output.splitlines()[-1].startswith("error: ")
    assert REFUSES[name] in output


def test_what_is_emitted_instantiates_the_family(found, tree):
    (unit,) = (path for path in (tree / "emitted").rglob("*.cu") if "toy" in path.read_text())
    text = unit.read_text()
    assert f'#include "{TOY_FAMILY.launch_header}"' in text
    assert f"constexpr auto kConfig = {TOY_FAMILY.struct}{{" in text
    assert str(TOY) in text


def test_pages_and_notebooks_show_it(found, tree):
    for name in ("config", "inspect"):
        assert str(TOY) in (tree / f"{name}.html").read_text()
    assert str(TOY) in found["python"]["config"]
    assert "Space of toy_forward" in found["python"]["space"]


def test_the_config_map_and_the_search_know_it(found):
    header = found["python"]["header"]
    assert f"struct {TOY_FAMILY.struct}" in header
    assert f'family = "{NAME}"' in header
    assert found["python"]["searched"] == ["sm80_forward", "sm90_forward", NAME]

"""A family is a folder in pyflash/config and one line, be it of a known op or of a new one: in a
copy of the repository that has both, every tool that needs no compiler and no GPU takes it, with no
edit elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.bench_records import record
from support.fake_families import FAKES, Fake, copied_tree

from pyflash.config import FAMILIES

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


def commands(fake: Fake, folder: Path) -> dict[str, list[str]]:
    name, config = fake.family.name, str(fake.config)
    unknown = config.replace(f"{fake.family.tag}+", "sm70+")
    emitted = ["build", config, "--arch", "90", "--emit-to", str(folder / "emitted")]
    listed = ["build", "--set", fake.set_name, "--arch", "90", "--list"]
    inspect = ["inspect", config, "--arch", "sm_90", "--part", "traffic"]
    bench = ["bench", config, "--read", str(folder / "records.jsonl")]
    found = {
        "config": ["config", config],
        "config json": ["config", config, "--json"],
        "config html": ["config", config, "--html", str(folder / "config.html")],
        "space": ["space", name, "d_head=64"],
        "space json": ["space", name, "d_head=64", "--json"],
        "space list": ["space", name, "d_head=64", "--list"],
        "space help": ["space", "--help"],
        "unknown space": ["space", "sm70_forward"],
        "unknown config": ["config", unknown],
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


@pytest.fixture(scope="module", params=FAKES.values(), ids=FAKES)
def fake(request) -> Fake:
    return request.param


@pytest.fixture(scope="module")
def tree(fake, tmp_path_factory) -> Path:
    return copied_tree(tmp_path_factory.mktemp("tree"), fake)


@pytest.fixture(scope="module")
def found(fake, tree) -> dict:
    (tree / "commands.json").write_text(json.dumps(commands(fake, tree)))
    measured = record() | {"config": fake.config.to_dict(), "short_form": str(fake.config)}
    lines = (json.dumps(one) + "\n" for one in (record("PyTorch flash"), measured))
    (tree / "records.jsonl").write_text("".join(lines))
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, "commands.json", str(fake.config), "found.json"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYFLASH_CACHE_DIR": str(tree / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads((tree / "found.json").read_text())
    assert found["python"]["folder"] == str(tree / "pyflash")
    return found


# With the family's name, tag, config and another of its set, and the names of all families.
SAYS = {
    "config": ["family {name}"],
    "config json": ['"family": "{name}"', '"d_head": '],
    "config html": [],
    "space": ["configs of {name}"],
    "space json": ['"family": "{name}"'],
    "space list": ["16, 64, ", ": {tag}+"],
    "space help": ["{families}"],
    "emit": [],
    "list": ["{config}", "{other}", "2 configs"],
    "inspect": ["{config} on sm_90", "no traffic: the emulator does not run the family {name}"],
    "inspect json": ['"family": "{name}"', '"demand": {{}}'],
    "inspect html": [],
    "bench table": ["{config}", "400"],
    "bench json": ["{config}", '"family": "{tag}"'],
    "bench csv": ["{config}"],
    "bench markdown": ["128 full", "400"],
    "bench cutlass": ["{config}", "attention"],
}
REFUSES = {
    "unknown space": "known ones are {names}",
    "unknown config": "unknown word 'sm70'",
    "emulate": "the emulator does not run the family {name}",
}


def filled(words: str, fake: Fake) -> str:
    _, other = fake.family.sets[fake.set_name]()
    families = sorted([*FAMILIES, fake.family], key=lambda family: family.tag)
    names = [family.name for family in families]
    return words.format(
        name=fake.family.name,
        tag=fake.family.tag,
        config=fake.config,
        other=other,
        names=", ".join(names),
        families=" or ".join([f"{names[0]} (default)", *names[1:]]),
    )


def test_every_command_is_judged(fake):
    assert set(commands(fake, Path())) == {*SAYS, *REFUSES}


@pytest.mark.parametrize("name", SAYS)
def test_a_tool_takes_the_family(fake, found, name):
    status, output = found[name]
    assert status == 0, output
    for words in SAYS[name] + (fake.says if name == "config" else []):
        # Help is wrapped to the width of a terminal.
        shown = " ".join(output.split()) if name == "space help" else output
        assert filled(words, fake) in shown


@pytest.mark.parametrize("name", REFUSES)
def test_what_cannot_be_is_refused_in_a_line(fake, found, name):
    status, output = found[name]
    assert status == 1
    assert output.splitlines()[-1].startswith("error: ")
    assert filled(REFUSES[name], fake) in output


def test_what_is_emitted_instantiates_the_family(fake, found, tree):
    family = fake.family
    (unit,) = (tree / "emitted").glob("*.cu")
    text = unit.read_text()
    assert f'#include "{family.kernel_header}"' in text
    assert f"constexpr auto kConfig = {family.struct}{{" in text
    assert f"reinterpret_cast<void const*>({family.kernel}<kConfig, kBuilt[0]>)" in text
    built = text.split("kBuilt[] = {\n")[1].split("};\n\n")[0]
    features = [line.strip(" ,") for line in built.splitlines()]
    expected = family.op.features.in_dispatch_order(family.built_features(fake.config))
    assert features == [f.to_cpp() for f in expected]
    assert str(fake.config) in text
    rows = (tree / "emitted/config_map.cpp").read_text()
    assert f"ConfigMapRow<{family.op.struct}> const" in rows
    included = (tree / "emitted/cute_kernels/generated/ops.h").read_text()
    assert f'#include "{family.op.header}"' in included
    assert f'#include "{family.host_header}"' in included


def test_pages_and_notebooks_show_it(fake, found, tree):
    for name in ("config", "inspect"):
        assert str(fake.config) in (tree / f"{name}.html").read_text()
    assert str(fake.config) in found["python"]["config"]
    assert f"Space of {fake.family}" in found["python"]["space"]


def test_the_config_map_and_the_search_know_it(fake, found):
    """A problem of attention is of op forward, whose families alone are searched."""
    family, header = fake.family, found["python"]["header"]
    assert f"struct {family.struct}" in header
    assert f'family = "{family.name}"' in header
    assert f"ConfigsOf<pyflash::{family.op.struct}>" in header
    searched = [f.name for f in (*FAMILIES, family) if f.op is FAMILIES[0].op]
    assert found["python"]["searched"] == searched

"""Libraries of named combinations of features, and of no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_lines import config_of
from support.invoked import build_command

from pyflash.codegen.build import compiled_features, kernel_compilations
from pyflash.codegen.kernel_libraries import read_record
from pyflash.config import FAMILIES, Arch, Family

# Prints the config map of a process that loads nothing but one library.
LOADED = """
import json, sys, torch, pyflash
from pyflash.op.library import built_configs
from pyflash.codegen import kernel_libraries
pyflash.codegen.kernel_libraries.installed = lambda folder: []
pyflash.codegen.kernel_libraries.of_user = lambda abi: []
pyflash.load(sys.argv[1])
rows = built_configs(sys.argv[2])
needed = {f: [row.covers(f, 90) for row in rows.values()] for c in rows for f in c.family.op.built}
print(json.dumps([
    {str(config): list(map(str, row.features)) for config, row in rows.items()},
    {str(f): any(covered) for f, covered in needed.items()},
]))
"""


def _lacking(family: Family) -> list[str]:
    """The combinations of its op that hold a feature which no kernel of it has."""
    return [str(f) for f in family.op.built if any(getattr(f, name) for name in family.lacks)]


COMBINATIONS = [
    (family, str(f))
    for family in FAMILIES
    for f in family.op.built
    if str(f) not in _lacking(family)
]
REFUSED = [(family, features) for family in FAMILIES for features in _lacking(family)]


@pytest.mark.parametrize(("family", "features"), COMBINATIONS, ids=str)
def test_what_is_emitted_has_that_combination_alone(family: Family, features: str, tmp_path):
    config = config_of(family).canonical()
    words = [config, "--arch", "90", "--only", features]
    assert build_command(*words, "--emit-to", tmp_path).exit_code == 0
    (unit,) = tmp_path.glob("*.cu")
    emitted = re.findall(rf"{family.op.features.struct}\{{.*?\}}", unit.read_text())
    assert emitted == [family.op.features.parse(features).to_cpp()]
    (compilation,) = kernel_compilations({config: [Arch.of(90)]}, [features]).values()
    assert compilation.text == unit.read_text()
    (told,) = json.loads(build_command(*words, "--dry-run", "--json").stdout)
    assert told["config"] == str(config)


@pytest.mark.parametrize(("family", "features"), REFUSED, ids=str)
def test_a_combination_that_the_family_lacks_is_refused(family: Family, features: str, tmp_path):
    config = config_of(family).canonical()
    words = [config, "--arch", "90", "--only", features, "--emit-to", tmp_path]
    result = build_command(*words)
    assert result.exit_code == 1
    assert "kernels of" in result.stderr
    assert "lack it" in result.stderr
    assert not list(tmp_path.glob("*.cu"))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_library_of_one_combination_is_built_and_loaded(family: Family, tmp_path, uncaptured):
    config, features = config_of(family).canonical(), str(family.op.built[0])
    words = [config, "--arch", "90", "--only", features, "--out", tmp_path]
    with uncaptured():
        result = build_command(*words, "--json")
    assert result.exit_code == 0, result.stderr
    library = Path(json.loads(result.stdout)["library"])
    record = read_record(library)
    ((name, built),) = record["configs"].items()
    assert (name, len(built["kernels"])) == (str(config), 1)
    assert record["rebuild"][-3:] == ["--only", features, str(config)]
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, library, family.op.name],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, covered = json.loads(loaded.stdout)
    assert rows == {str(config): [features]}
    parsed = family.op.features.parse(features)
    assert covered == {str(f): parsed.covers(f) for f in family.op.built}


def test_only_and_more_features_exclude_each_other_and_none_is_refused():
    config = config_of(FAMILIES[0])
    result = build_command(config, "--only", "plain", "--features", "softcap")
    assert result.exit_code == 2
    assert "--features and --only exclude each other" in result.stderr
    result = build_command(config, "--only", "plain,causal")
    assert result.exit_code == 2
    assert "unknown feature 'causal'" in result.stderr
    with pytest.raises(ValueError, match="no combination of features to build"):
        compiled_features(config, [])

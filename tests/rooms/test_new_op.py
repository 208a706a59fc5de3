"""A second op with a family: what the build emits of it compiles and runs, as do the sources of the
repository, which change in nothing. The runtime of CUDA is played by fake_cudart.cpp."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_families import FAKES, ROOT, copied_tree
from support.headers import APART, one_unit
from support.toy_op import NEGATE, NEGATING

from pyflash.config import FORWARD, Features
from pyflash.third_party import cuda, cutlass

FAKE = FAKES["sm80_negate"]
SUPPORT = ROOT / "tests" / "support"
HOST = ("config_map", "cubins", "names", "short_form", "variant_map")
CHECK = ["g++", "-std=c++20", "-fPIC"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    root = copied_tree(tmp_path_factory.mktemp("tree"), FAKE)
    arguments = [str(NEGATING), "--arch", "90", "--emit-to", "emitted"]
    subprocess.run(
        [sys.executable, "-m", "codegen", *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "PYFLASH_CACHE_DIR": str(root / "cache")},
        check=True,
    )
    return root


def compiled(tree: Path, *options: str | Path) -> None:
    """With the headers of the copy alone, and those that it emitted."""
    headers = [f"-I{tree}", f"-I{tree / 'emitted'}"]
    result = subprocess.run(
        [*CHECK, *headers, *map(str, options)], capture_output=True, text=True, cwd=tree
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def ran(tree) -> list[str]:
    """What program.cpp prints of a library that has the emitted unit and config map."""
    try:
        folders = [cutlass.include_dir(), *cuda.include_dirs()]
    except (cuda.CudaError, cutlass.CutlassError) as error:
        pytest.skip(str(error))
    system = [option for folder in folders for option in ("-isystem", folder)]
    (unit,) = (tree / "emitted").glob("*.cu")
    sources = [unit, tree / "emitted/config_map.cpp", tree / "cute_kernels/kernel_library.cu"]
    sources += [SUPPORT / "fake_cudart.cpp", tree / "cute_kernels/host/short_form.cpp"]
    library, program = tree / "library.so", tree / "program"
    compiled(tree, "-shared", "-Dmain=unused", *system, "-x", "c++", *sources, "-o", library)
    host = [tree / f"cute_kernels/host/{name}.cpp" for name in HOST]
    compiled(tree, SUPPORT / "toy_op/program.cpp", *host, "-ldl", "-o", program)
    (tree / "cubin").write_bytes(b"\x7fELF")
    command = [program, library, str(NEGATING), tree / "cubin"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_rows_of_an_op_are_in_its_map_alone(ran):
    assert ran[0] == "rows 1"
    (row,) = json.loads(ran[1])
    assert (row["config"], row["features"]) == (str(NEGATING), [str(f) for f in NEGATE.built])
    assert ran[2] == f"shape {NEGATING.B_r}, of op forward 0"


def test_an_op_runs_its_phases_with_its_features(ran):
    """2 is gathered before, negated by the config's kernel, and again where that is asked for."""
    assert ran[3:6] == ["plain: error 0, y -2", "scaled: error 0, y -6", "twice: error 0, y 6"]


def test_what_a_family_refuses_is_refused_by_its_row(ran):
    assert ran[6] == "ragged: refused, it has rows that are no whole tile"


def test_a_config_of_another_op_is_refused(ran):
    refusal = f"config '{NEGATING}' is of another op: expected one of {FORWARD}"
    assert ran[7] == f"refused: pyflash: {refusal}"


def test_a_cubin_of_an_op_replaces_the_kernel_with_its_features_alone(ran):
    """The runtime that plays loads none: 801 is cudaErrorNotSupported."""
    assert ran[8] == f"rank 7, shape {NEGATING.B_r}"
    assert ran[9:] == ["plain: error 0, y -2", "of the cubin: error 801, y 0"]


@pytest.mark.parametrize("name", APART["host"])
def test_host_code_compiles_unchanged(tree, name):
    compiled(tree, "-fsyntax-only", tree / f"cute_kernels/host/{name}.cpp")


def test_the_other_host_code_compiles_unchanged(tree):
    unit = tree / "host.cpp"
    unit.write_text(one_unit("host", tree))
    compiled(tree, "-fsyntax-only", unit)


def test_features_of_one_op_are_taken_by_name_for_another():
    of_negate = NEGATE.features.of
    assert of_negate(Features(right_window=True)) == NEGATE.features(right_window=True)
    with pytest.raises(ValueError, match="unknown feature 'softcap'"):
        of_negate(Features(softcap=True))
    for op in (NEGATE, FORWARD):
        symbol = f"_ZN3foo{len(op.features.struct)}{op.features.struct}Lb0ELb1EE"
        found = op.features.of_kernel(symbol)
        assert str(found) == op.features.names()[1]
        other = NEGATE if op is FORWARD else FORWARD
        with pytest.raises(ValueError, match=re.escape(other.features.struct)):
            other.features.of_kernel(symbol)

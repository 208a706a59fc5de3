"""Libraries that are of no use: each is refused in a sentence before it is mapped, and nothing else
is lost with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.damage import damage
from support.fake_library import build_fake_library

import pyflash
from pyflash.codegen import kernel_libraries
from pyflash.codegen.build import abi, build_kernels
from pyflash.codegen.kernel_libraries import (
    LIB_DIR,
    KernelLibraryError,
    library_file,
    user_dir,
    write_record,
)
from pyflash.codegen.seal import seal

ROOT = Path(__file__).resolve().parents[2]
N_KERNEL_LIBRARIES, N_OP_LIBRARIES = 320, 40

# Loads every library of a folder, and prints what became of each.
LOAD_ALL = """if True:
    import json, sys
    from pathlib import Path
    import torch, pyflash
    from pyflash.op import library
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        library.LIB_DIR = folder
        try:
            if (folder / "ops").exists():
                library._load_ops()
                outcome = 0
            else:
                outcome = pyflash.load(folder / "libpyflash_kernels-fake.so")
        except (RuntimeError, ImportError) as error:
            outcome = str(error)
        print(json.dumps([folder.name, outcome]), flush=True)
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory) -> Path:
    library = build_fake_library(tmp_path_factory.mktemp("fake"))
    write_record(library, {"configs": {}, "rebuild": ["pyflash", "build", "(FP16, 512)"]})
    return library


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )


def test_the_two_sides_agree_on_the_abi():
    assert abi() == torch.ops.pyflash.kernel_library_abi()


def test_damaged_libraries_are_refused_and_never_mapped(fake, tmp_path):
    """A signal would end the process that loads them all."""
    how = {}
    for seed in range(N_KERNEL_LIBRARIES):
        folder = tmp_path / "all" / f"{seed:03}"
        shutil.copytree(fake.parent, folder)
        how[folder.name] = damage([folder / fake.name], seed)
        if seed % 7 == 0:
            damage([folder / f"{fake.stem}.json"], seed // 7)
    for seed in range(N_OP_LIBRARIES):
        folder = tmp_path / "all" / f"ops{seed:03}"
        folder.mkdir()
        (folder / "ops").touch()
        shutil.copy(LIB_DIR / "libpyflash_ops.so", folder)
        how[folder.name] = damage([folder / "libpyflash_ops.so"], seed)
    result = run_python("-c", LOAD_ALL, str(tmp_path / "all"))
    assert result.returncode == 0, result.stderr
    outcomes = dict(map(json.loads, result.stdout.splitlines()))
    assert outcomes.keys() == how.keys()
    for name, outcome in outcomes.items():
        if re.search(r"cut to (\d+) of \1 bytes$", how[name]):
            continue
        assert isinstance(outcome, str), f"{how[name]} was loaded"
        assert re.search(ADVICE, outcome), outcome
        assert "\n" not in outcome
        assert len(outcome) < 500


ADVICE = (
    r"libpyflash_(kernels-fake|ops)\.so.* "
    r"(to build it( again)?: pyflash build|to remove it: rm |expected the path of)"
)


REFUSED = {
    "of another version": (
        {"abi": "1-0123456789abcdef"},
        "was built for ABI 1-0123456789abcdef, ex",
    ),
    "no kernel library": ({}, "is whole, but is no kernel library"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_whole_libraries_of_another_kind_are_refused(tmp_path, case):
    record, sentence = REFUSED[case]
    library = tmp_path / "libpyflash_kernels-x.so"
    library.write_bytes(b"never mapped")
    seal(library, record)
    with pytest.raises(KernelLibraryError, match=re.escape(f"'{library}' {sentence}")):
        pyflash.load(library)


def test_the_advice_is_the_command_that_built_the_library(tmp_path):
    library = library_file(tmp_path, "mine")
    library.write_bytes(b"")
    write_record(library, {"rebuild": ["pyflash", "build", "--arch", "90", "(FP16, 64)"]})
    record = library.with_suffix(".json").read_text()
    command = f"to build it again: pyflash build --arch 90 '(FP16, 64)' --out {tmp_path}"
    assert kernel_libraries.advice(library) == command
    for damaged in ("", "[]", "{}", "{", record.replace("pyflash", "pyblash")):
        library.with_suffix(".json").write_text(damaged)
        assert kernel_libraries.advice(library).endswith(f"; to remove it: rm {library}")
    by_set = library_file(tmp_path, "prog")
    by_set.write_bytes(b"")
    command = f"to build it again: pyflash build --set prog --name prog --out {tmp_path}"
    assert kernel_libraries.advice(by_set) == command


# A process that starts


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def put(library: Path, name: str) -> Path:
    """A copy of a library where `pyflash build` would leave it."""
    path = library_file(user_dir(abi(), name), name)
    shutil.copytree(library.parent, path.parent)
    (path.parent / library.name).rename(path)
    (path.parent / f"{library.stem}.json").rename(path.with_suffix(".json"))
    return path


START = """if True:
    import torch, pyflash
    from pyflash.op.reference import check
    q, k, v = (torch.randn(1, 33, 2, 64, dtype=torch.float16) for _ in range(3))
    check(pyflash.attention(q, k, v), q, k, v)
    print(len(pyflash.built_configs()))
"""


def test_bad_libraries_in_the_cache_take_nothing_else_down(fake, cache):
    good = put(fake, "good")
    cut = put(fake, "cut")
    os.truncate(cut, cut.stat().st_size // 2)
    foreign = put(fake, "foreign")
    foreign.write_bytes(Path(sys.executable).resolve().read_bytes()[:100_000])
    stale = put(fake, "stale")
    stale.write_bytes(b"")
    seal(stale, {"abi": "1-0"})
    result = run_python("-c", START)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "11\n"
    warnings = [line for line in result.stderr.splitlines() if "UserWarning" in line]
    assert len(warnings) == 3, result.stderr
    for path in (cut, foreign, stale):
        (line,) = (line for line in warnings if f"'{path}'" in line)
        assert "pyflash: skipped a library: " in line
        assert line.endswith("; to build it again: pyflash build '(FP16, 512)'")
    assert str(good) not in result.stderr
    help_ = run_python("-c", "from pyflash.cli import app; app(['--help'])")
    assert help_.returncode == 0
    assert help_.stderr == ""


def test_kernels_in_a_cache_that_others_can_write_to_are_not_loaded(fake, cache):
    put(fake, "good")
    cache.chmod(0o777)
    result = run_python("-c", START)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "0\n"
    (line,) = (line for line in result.stderr.splitlines() if "UserWarning" in line)
    assert "pyflash: the kernels in the cache are skipped: " in line
    assert "can be written by others" in line


def test_libraries_of_another_version_in_the_cache_are_not_looked_at(fake, cache):
    other = user_dir("2-0123456789abcdef", "default")
    other.mkdir(parents=True)
    (other / "libpyflash_kernels-default.so").write_bytes(b"")
    assert kernel_libraries.of_user(abi()) == []
    assert kernel_libraries.find("default", abi()) == library_file(LIB_DIR, "default")
    path = put(fake, "default")
    assert kernel_libraries.of_user(abi()) == [path]
    assert kernel_libraries.find("default", abi()) == path


def test_users_build_into_the_cache(cache, monkeypatch):
    from pyflash.codegen import build

    linked = []
    monkeypatch.setattr(build, "compile_all", lambda *_: [])
    monkeypatch.setattr(build, "_link_kernels", lambda path, *_: linked.append(path) or path)
    monkeypatch.setattr(build.library_objects, "compiled_code", lambda *_: None)
    config = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
    library = build_kernels([config], [90])
    assert linked == [library]
    assert library == user_dir(abi(), "default") / "libpyflash_kernels-default.so"
    assert library.is_relative_to(cache)

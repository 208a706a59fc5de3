"""Kernel libraries that are kept under a hash of what they are made of, and built by many processes
at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.damage import damage
from support.fake_compiler import fake_compiler

from pyflash.codegen import seal, toolchain
from pyflash.codegen.build import abi, build_on_demand
from pyflash.codegen.compilation import ROOT
from pyflash.codegen.kernel_libraries import checked, read_record

CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
TWIN = "(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles"

MANY_PROCESSES = """if True:
    import os, sys
    from pathlib import Path
    from support.fake_compiler import fake_compiler
    from pyflash.codegen import build, toolchain
    compiler = fake_compiler(Path(sys.argv[1]), 0.1)
    os.environ["CXX"] = compiler.command[0]
    for name in ("cpp_compiler", "kernel_compiler"):
        setattr(toolchain, name, lambda *_: compiler)
    go, started = os.pipe()
    for i in range(4):
        if os.fork() == 0:
            os.close(started)
            os.read(go, 1)  # until all are there
            config = sys.argv[2 + i % 2]
            library = build.build_on_demand([config], [90])
            sys.stdout.write(f"{config}={library}\\n")
            sys.stdout.flush()
            os._exit(0)
    os.close(started)
    statuses = [os.wait()[1] for _ in range(4)]
    sys.exit(any(statuses))
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    compiler = fake_compiler(tmp_path)
    monkeypatch.setenv("CXX", compiler.command[0])
    for name in ("cpp_compiler", "kernel_compiler"):
        monkeypatch.setattr(toolchain, name, lambda *_: compiler)

    def made() -> list[str]:
        """What the compiler and the linker have written since this was called last."""
        path = tmp_path / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [Path(line).name.split("-", 2)[2] for line in lines]

    return made


def test_of_many_processes_one_builds(tmp_path, runs):
    result = subprocess.run(
        [sys.executable, "-c", MANY_PROCESSES, str(tmp_path), CONFIG, TWIN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    libraries = {line.rpartition("=")[2] for line in lines}
    assert len(libraries) == 2
    for library in libraries:
        with checked(Path(library), abi()):
            pass
    made = runs()
    for name in ("config_map.o", "machine_code.o"):  # each library has its own
        made.remove(name)
    assert len(made) == len(set(made)), "something was made twice"
    assert sum(name.endswith(".so") for name in made) == 2
    assert "waiting for another build" in result.stderr


def test_a_library_is_built_once_and_again_where_it_was_damaged(runs):
    library = build_on_demand([CONFIG], [90])
    first = runs()
    assert sum(name.endswith(".so") for name in first) == 1
    assert build_on_demand([CONFIG], [90]) == library
    assert runs() == []
    contents = library.read_bytes()
    for seed in range(8):
        what = damage([library], seed)
        assert build_on_demand([CONFIG], [90]) == library
        assert library.read_bytes() == contents, what
        assert [Path(name).suffix for name in runs()] == [".so"], what
    assert seal.check(library)["abi"] == abi()
    assert list(read_record(library)["configs"]) == [CONFIG]


def test_the_path_of_a_library_is_what_it_is_made_of(runs):
    library = build_on_demand([CONFIG], [90])
    others = [
        build_on_demand([TWIN], [90]),
        build_on_demand([CONFIG, TWIN], [90]),
        build_on_demand([CONFIG], [90], more_features=["softcap"]),
        build_on_demand([CONFIG], [90], features=["plain"]),
    ]
    assert len({library.parent, *(other.parent for other in others)}) == 5
    assert build_on_demand([CONFIG + "+buffer"], [90]) == library  # one canonical form
    assert json.loads(library.with_suffix(".json").read_text())["rebuild"] == []

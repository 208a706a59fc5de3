"""Cubins: kernels without the host code of a library, and the rows of the config map they make."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.fake_library import build_fake_library

from pyflash import Features, FlashForwardKernelConfig
from pyflash.codegen import cache_dir, emit, kernels
from pyflash.codegen.build import BuildError
from pyflash.codegen.kernels import Request, compile_kernel, cubin_compilation
from pyflash.config import parse
from pyflash.config.arch import Arch
from pyflash.inspect.sass import SassError, disassemble
from pyflash.third_party.cuda import CudaError

CUTLASS = "4.2"
SMALL = FlashForwardKernelConfig.parse(
    "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_3"
)
SM90 = "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent"
# In the fake library, which has plain, right_window and both windows with predicated heads.
FAKE = "(FP16, 640, 64, 64, 4): async+load_0_0_0_tiles"


def test_a_cubin_has_the_machine_code_of_a_library(
    built_library: Path, built_arch: Arch, library_configs, uncaptured
):
    """One kernel of one config: as without host code, so with it."""
    config = library_configs[0]
    with uncaptured():
        path = compile_kernel(config, "right_window", built_arch)
    try:
        (alone,) = disassemble(path)
        library = disassemble(built_library)
    except (CudaError, SassError) as error:
        pytest.skip(str(error))
    (same,) = (kernel for kernel in library if kernel.function == alone.function)
    assert alone.instructions == same.instructions
    row = json.loads(path.with_suffix(".row.json").read_text())
    assert row == {
        "config": str(config),
        "arch": built_arch.sm,
        "kernels": {"right_window": alone.function},
    }


def test_what_a_request_compiles():
    compilation = cubin_compilation(Request(SMALL, ("sinks", "plain")), Arch.of(90), CUTLASS)
    assert compilation.compiler.flags[-1] == "-cubin"
    targets = [flag for flag in compilation.compiler.flags if flag.startswith("-gencode")]
    assert targets == ["-gencode=arch=compute_90,code=sm_90"]
    kernels = compilation.text.split("kBuilt[] = {")[1]
    assert kernels.index("ForwardFeatures{}") < kernels.index(".sinks = true")
    of_sm90 = cubin_compilation(Request(SM90), Arch.of(90), CUTLASS)
    assert 'sm90/forward/kernel.h"' in of_sm90.text
    twin = SMALL.replace(V_mma_load_K_tiles=4)
    assert twin.canonical().replace(V_mma_load_K_tiles=2) == SMALL
    assert cubin_compilation(Request(twin), Arch.of(90), CUTLASS).text == emit.emit_config(
        twin.canonical(), [Features()]
    )


def test_no_other_builder_sweeps_what_is_written_beside_a_cubin(tmp_path, monkeypatch):
    """Pitfall 22: concurrent builders."""
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))

    def sweep_as_another_builder(_):
        with open(tmp_path / "cache" / "lock", "w") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cache_dir.sweep(tmp_path / "cache")

    monkeypatch.setattr(cache_dir.os, "fsync", sweep_as_another_builder)
    cubin = tmp_path / "cache" / "objects" / "kernel.o"
    record = {"kernels": [{"function": "_Z1kIXtl15ForwardFeaturesLb1EEEEvv"}]}
    kernels._describe(SimpleNamespace(object=cubin, record=record), SMALL, Arch.of(90))
    row = json.loads(cubin.with_suffix(".row.json").read_text())
    assert row["kernels"] == {"right_window": "_Z1kIXtl15ForwardFeaturesLb1EEEEvv"}


def test_requests_of_one_kernel_compile_it_once(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "compile_all", lambda all_, what: asked.extend(all_) or all_)
    monkeypatch.setattr(kernels, "_describe", None)  # nothing compiles
    whole, named_otherwise = (SMALL.replace(V_mma_load_K_tiles=n) for n in (0, 4))
    twins = [Request(whole), Request(named_otherwise), Request(str(whole))]
    results = kernels.compile_kernels([*twins, Request(whole, ("softcap",))], 90)
    assert len(asked) == 2
    assert [type(result) for result in results.values()] == [BuildError] * 4


def test_the_other_family_is_compiled_for_its_architecture():
    compilation = cubin_compilation(Request(SM90), Arch.of(90), CUTLASS)
    assert "-gencode=arch=compute_90a,code=sm_90a" in compilation.compiler.flags
    assert "kBuilt[] = {\n    ForwardFeatures{}};" in compilation.text
    assert "flash_forward_sm90_kernel<kConfig, kBuilt[0]>" in compilation.text


def test_requests_that_nothing_compiles_are_refused():
    with pytest.raises(ValueError, match="on sm_80: "):
        cubin_compilation(Request(SM90), Arch.of(80), CUTLASS)
    with pytest.raises(ValueError, match="sm_100 runs PTX of sm_90, and a cubin has machine code"):
        cubin_compilation(Request(SMALL), Arch.of(100), CUTLASS)


def write_cubin(folder: Path, config: str, *features: str, image: bytes = b"\x7fELF") -> Path:
    """A file that looks like a cubin; only launching it would tell."""
    path = folder / f"{'_'.join(features)}.cubin"
    path.write_bytes(image)
    kernels = {name: f"_Z{name}" for name in features}
    row = {"config": config, "arch": 90, "kernels": kernels}
    path.with_suffix(".row.json").write_text(json.dumps(row))
    return path


def run_loading(code: str, *arguments: object) -> str:
    """In a process of its own, whose config map is not that of other tests. What it prints, and
    the last line of an error."""
    prologue = "import json, sys, pyflash\nfrom pyflash.op.library import load_cubin\n"
    result = subprocess.run(
        [sys.executable, "-c", prologue + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return result.stdout + result.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(("config", "target"), [(SMALL, "90"), (parse(SM90), "90a")])
def test_a_cubin_of_a_new_config_makes_a_row(tmp_path, config, target):
    cubins = [write_cubin(tmp_path, str(config), name) for name in ("right_window", "plain")]
    code = """
pyflash.load(sys.argv[1])
for path in sys.argv[3:]:
    load_cubin(path)
print(pyflash.built_configs()[pyflash.config.parse(sys.argv[2])])
"""
    library = build_fake_library(tmp_path)
    assert run_loading(code, library, config, *cubins).startswith(
        f"BuiltConfig(config={config!r}, features=({Features()!r}, "
        f"{Features(right_window=True)!r}), sm_archs=({target!r},), ptx_arch=0, "
        f"n_threads={config.n_threads}, smem_bytes={config.smem_bytes}, rank="
    )


@pytest.mark.parametrize("names", list(itertools.permutations(("plain", "fixed_splits"))))
def test_the_row_has_memory_for_each_of_its_kernels(tmp_path, names):
    """In whichever order they come."""
    config = parse(SM90)
    most = config.smem_bytes_with(Features(fixed_splits=True))
    assert most > config.smem_bytes
    cubins = [write_cubin(tmp_path, SM90, name) for name in names]
    code = """
pyflash.load(sys.argv[1])
for path in sys.argv[3:]:
    load_cubin(path)
print(pyflash.built_configs()[pyflash.config.parse(sys.argv[2])].smem_bytes)
"""
    assert run_loading(code, build_fake_library(tmp_path), SM90, *cubins) == f"{most}\n"


def test_a_cubin_adds_to_what_a_library_has(tmp_path):
    """Its kernels come in the order of dispatch among those of the library."""
    cubin = write_cubin(tmp_path, FAKE, "softcap", "right_window")
    code = """
pyflash.load(sys.argv[1])
load_cubin(sys.argv[2])
row = pyflash.built_configs()[pyflash.FlashForwardKernelConfig.parse(sys.argv[3])]
print(*row.features)
pyflash.load(sys.argv[1])
row = pyflash.built_configs()[pyflash.FlashForwardKernelConfig.parse(sys.argv[3])]
print(*row.features)
"""
    with_cubin, without = run_loading(code, build_fake_library(tmp_path), cubin, FAKE).splitlines()
    assert with_cubin == ("plain softcap right_window right_window+left_window+predicated_head_dim")
    assert without == "plain right_window right_window+left_window+predicated_head_dim"


def test_files_that_are_no_cubins_are_refused(tmp_path):
    code = """
if sys.argv[2:]:
    pyflash.load(sys.argv[2])
elif pyflash.built_configs():
    sys.exit("libraries of this checkout are loaded")
load_cubin(sys.argv[1])
"""
    library = build_fake_library(tmp_path)
    cubin = write_cubin(tmp_path, str(SMALL), "plain")
    refusal = run_loading(code, cubin)
    assert "none is loaded; to build one: pyflash build" in refusal or refusal.startswith(
        "libraries"
    )
    text = write_cubin(tmp_path, str(SMALL), "plain", image=b"text")
    assert "is no cubin: it does not begin as an ELF file" in run_loading(code, text, library)
    text.with_suffix(".row.json").unlink()
    assert "FileNotFoundError" in run_loading(code, text, library)
